//! Deterministic CBOR (RFC 8949 4.2.1), the same as avro/canonical.py writes.

use crate::value::Value;

fn head(out: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    if number < 24 {
        out.push(major | number as u8);
    } else if let Ok(number) = u8::try_from(number) {
        out.extend_from_slice(&[major | 24, number]);
    } else if let Ok(number) = u16::try_from(number) {
        out.push(major | 25);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = u32::try_from(number) {
        out.push(major | 26);
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(major | 27);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

pub fn unsigned(out: &mut Vec<u8>, number: u64) {
    head(out, 0, number);
}

pub fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    head(out, 2, value.len() as u64);
    out.extend_from_slice(value);
}

pub fn text(out: &mut Vec<u8>, value: &str) {
    head(out, 3, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

pub fn array_head(out: &mut Vec<u8>, items: usize) {
    head(out, 4, items as u64);
}

pub fn map_head(out: &mut Vec<u8>, members: usize) {
    head(out, 5, members as u64);
}

pub fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Text(given) => text(out, given),
        Value::Bytes(given) => bytes(out, given),
        Value::Integer(number) => integer(out, *number),
        Value::Boolean(truth) => out.push(if *truth { 0xf5 } else { 0xf4 }),
        Value::Float(number) => float(out, *number),
        Value::List(items) => {
            array_head(out, items.len());
            for item in items {
                self::value(out, item);
            }
        }
        Value::Map(members) => {
            map_head(out, members.len());
            let mut members: Vec<_> = members.iter().map(|(key, member)| (key_order(key), member)).collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            for ((_, key), member) in members {
                text(out, key);
                self::value(out, member);
            }
        }
    }
}

/// Returns the sort key of a text that is a map key: the order is that of its encoding.
pub fn key_order(key: &str) -> (usize, &str) {
    (key.len(), key)
}

/// Writes an integer in [-2^63, 2^64).
pub fn integer(out: &mut Vec<u8>, number: i128) {
    if number >= 0 {
        head(out, 0, number as u64);
    } else {
        head(out, 1, (-1 - number) as u64);
    }
}

/// Writes the shortest form with the same value. Zero and other integral values are integers, and are not passed here.
fn float(out: &mut Vec<u8>, number: f64) {
    let single = number as f32;
    if f64::from(single) != number {
        out.push(0xfb);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Some(half) = half(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

/// Returns the bits of the half-precision float that equals a single-precision one, if there is one.
fn half(single: f32) -> Option<u16> {
    let bits = single.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23 & 0xff) as i32 - 127;
    let fraction = bits & 0x7f_ffff;
    if (-14..=15).contains(&exponent) && fraction & 0x1fff == 0 {
        return Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16);
    }
    if (-24..-14).contains(&exponent) {
        let whole = fraction | 0x80_0000;
        let shift = (-1 - exponent) as u32; // 13 bits fewer, and one for each power of two below 2^-14
        if whole & ((1 << shift) - 1) == 0 {
            return Some(sign | (whole >> shift) as u16);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::half;

    /// Returns the value of a half-precision float, by its definition.
    fn said(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(bits >> 10 & 0x1f);
        let fraction = f64::from(bits & 0x3ff) / 1024.0;
        match exponent {
            0 => sign * fraction * 2f64.powi(-14),
            _ => sign * (1.0 + fraction) * 2f64.powi(exponent - 15),
        }
    }

    #[test]
    fn every_finite_half_is_found_again() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00 && bits & 0x7fff != 0) {
            assert_eq!(half(said(bits) as f32), Some(bits));
        }
    }

    #[test]
    fn what_lies_between_two_halves_is_none() {
        for bits in (1..0x7bffu16).filter(|bits| bits % 7 == 0) {
            let between = (said(bits) + said(bits + 1)) / 2.0;
            assert_eq!(half(between as f32), None);
        }
    }
}
