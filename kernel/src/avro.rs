//! Avro's binary encoding, the same as avro/reading.py reads and avro/binary.py writes.

/// Reads consecutive datums. `None` means that the form is unusual, so Python decides.
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    /// Reads an int or long: at most 64 bits of zigzag.
    pub fn long(&mut self) -> Option<i64> {
        let mut zigzag = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            zigzag |= bits << shift;
            if byte < 0x80 {
                return Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64));
            }
        }
        None
    }

    /// Reads a length or an index.
    pub fn count(&mut self) -> Option<usize> {
        usize::try_from(self.long()?).ok()
    }

    pub fn text(&mut self) -> Option<&'a str> {
        let length = self.count()?;
        std::str::from_utf8(self.take(length)?).ok()
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        self.take(length)
    }

    /// Reads the items of an array or a map, each with a function.
    pub fn blocks(&mut self, mut read: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            let count = self.count()?;
            if count == 0 {
                return Some(());
            }
            // Nearly every item takes at least a byte, so a count above the number of bytes left is left to Python.
            if count > self.data.len() - self.at {
                return None;
            }
            for _ in 0..count {
                read(self)?;
            }
        }
    }

    /// Reads an array of items of `size` bytes each.
    pub fn fixed_items(&mut self, size: usize) -> Option<Vec<&'a [u8]>> {
        let mut items = Vec::new();
        loop {
            let count = self.count()?;
            if count == 0 {
                return Some(items);
            }
            items.extend(self.take(count.checked_mul(size)?)?.chunks_exact(size));
        }
    }
}

pub fn write_long(out: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag > 0x7f {
        out.push(zigzag as u8 & 0x7f | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}

pub fn write_bytes(out: &mut Vec<u8>, value: &[u8]) {
    write_long(out, value.len() as i64);
    out.extend_from_slice(value);
}

pub fn write_text(out: &mut Vec<u8>, value: &str) {
    write_bytes(out, value.as_bytes());
}
