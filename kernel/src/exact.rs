//! Exact sums (reducers/arithmetic.py): numerator / 2^shift. A sum that needs more than 128 bits is left to Python.

use crate::value::Value;

/// Below this, numerator / 2^shift is a normal double, so the division is exact.
const SHIFT_MAX: u32 = 900;
const FRACTION_BITS: u32 = 52;
const EXPONENT_BIAS: i32 = 1075;
const INTEGER_MIN: i128 = -(1 << 63);
const INTEGER_END: i128 = 1 << 64;

#[derive(Clone, Copy, Debug)]
pub struct Exact {
    pub numerator: i128,
    pub shift: u32,
}

impl Exact {
    /// Converts a canonical number.
    pub fn of(value: &Value) -> Option<Self> {
        match *value {
            Value::Integer(number) => Some(Exact { numerator: number, shift: 0 }),
            Value::Float(number) => Exact::of_double(number),
            _ => None,
        }
    }

    fn of_double(number: f64) -> Option<Self> {
        let bits = number.to_bits();
        let (exponent, fraction) = ((bits >> FRACTION_BITS & 0x7ff) as i32, bits & ((1 << FRACTION_BITS) - 1));
        if exponent == 0 || exponent == 0x7ff {
            return None; // zero is an integer; what is left is subnormal, or no number
        }
        let whole = i128::from(fraction | 1 << FRACTION_BITS);
        let whole = if number < 0.0 { -whole } else { whole };
        match exponent - EXPONENT_BIAS {
            up @ 0.. => Some(Exact { numerator: whole.checked_mul(1i128.checked_shl(up as u32)?)?, shift: 0 }),
            down => Some(Exact { numerator: whole, shift: down.unsigned_abs() }.least()),
        }
    }

    /// Returns the sum, with the least shift.
    pub fn add(self, other: Self) -> Option<Self> {
        let shift = self.shift.max(other.shift);
        let scaled = |each: Self| {
            let more = shift - each.shift;
            (more < 126).then(|| each.numerator.checked_mul(1 << more)).flatten()
        };
        Some(Exact { numerator: scaled(self)?.checked_add(scaled(other)?)?, shift }.least())
    }

    fn least(self) -> Self {
        let spare = if self.numerator == 0 { self.shift } else { self.shift.min(self.numerator.trailing_zeros()) };
        Exact { numerator: if self.numerator == 0 { 0 } else { self.numerator >> spare }, shift: self.shift - spare }
    }

    /// Returns the nearest canonical number.
    pub fn rounded<'a>(self) -> Option<Value<'a>> {
        if self.shift == 0 && (INTEGER_MIN..INTEGER_END).contains(&self.numerator) {
            return Some(Value::Integer(self.numerator));
        }
        if self.shift > SHIFT_MAX {
            return None;
        }
        Value::number(self.numerator as f64 / 2f64.powi(self.shift as i32))
    }
}
