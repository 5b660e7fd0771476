//! Recognises canonical JSON (avro/canonical.py): keys sorted by code point, no white space, numbers as ECMAScript writes
//! them. It takes only what is certainly canonical; Python checks everything else.

/// Values that are nested deeper are left to Python.
const DEPTH_MAX: usize = 64;
/// Integers with more digits are left to Python.
const DIGITS_MAX: usize = 18;
/// Between these, ECMAScript and Rust write a double in the same layout: digits with a point in them.
const SAME_LAYOUT: std::ops::Range<f64> = 1e-4..1e15;

/// Returns whether a text is certainly the canonical JSON of some value but null.
pub fn is_canonical(text: &str) -> bool {
    let mut scanner = Scanner { text, at: 0 };
    text != "null" && scanner.value(0).is_some() && scanner.at == text.len()
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(|_| ()),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.take(b'{')?;
        if depth == DEPTH_MAX {
            return None;
        }
        let mut last = None;
        while self.peek()? != b'}' {
            if last.is_some() {
                self.take(b',')?;
            }
            // The order of keys with escapes is that of what they stand for.
            let key = self.string().filter(|key| !key.contains('\\'))?;
            if last.is_some_and(|last| last >= key) {
                return None;
            }
            last = Some(key);
            self.take(b':')?;
            self.value(depth + 1)?;
        }
        self.take(b'}')
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.take(b'[')?;
        if depth == DEPTH_MAX {
            return None;
        }
        let mut is_first = true;
        while self.peek()? != b']' {
            if !is_first {
                self.take(b',')?;
            }
            is_first = false;
            self.value(depth + 1)?;
        }
        self.take(b']')
    }

    /// Reads a string and returns what is between its quotes; only the shortest escapes are taken.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let (start, bytes) = (self.at, self.text.as_bytes());
        loop {
            match *bytes.get(self.at)? {
                b'"' => break,
                b'\\' if b"\"\\bfnrt".contains(bytes.get(self.at + 1)?) => self.at += 2,
                b'\\' | 0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.text.get(start..self.at - 1)
    }

    fn number(&mut self) -> Option<()> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || b"-.".contains(byte)).count();
        let number = &rest[..length];
        self.at += length;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit()) && (1..=DIGITS_MAX).contains(&digits.len());
        if is_integer {
            return (number == "0" || !digits.starts_with('0')).then_some(());
        }
        let double: f64 = number.parse().ok()?;
        (SAME_LAYOUT.contains(&double.abs()) && double.fract() != 0.0 && double.to_string() == number).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::is_canonical;

    #[test]
    fn takes_what_is_canonical() {
        for text in ["{}", "[]", "[1,-2,0,1.5]", r#"{"a":"\n\"é","b":[null,true]}"#, "0.25", "\"x\"", r#"{"":1,"a":{}}"#] {
            assert!(is_canonical(text), "{text}");
        }
    }

    #[test]
    fn leaves_the_rest() {
        for text in [
            "", "null", " 1", "1 ", "01", "-0", "1.0", "1e3", "--1", "1.50", "-", ".5", "[1,]", "[,1]", "{\"b\":1,\"a\":2}",
            "{\"a\":1,\"a\":2}", "{\"a\":1,}", "{,}", "\"\\/\"", "\"\\u0041\"", "\"\n\"", "\"a", "tru", "[1", "{\"a\" :1}",
            "1234567890123456789", "1 2", "nul", "{\"\\n\":1}", "0.00001", "NaN",
        ] {
            assert!(!is_canonical(text), "{text}");
        }
    }
}
