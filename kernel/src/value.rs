//! The canonical values that the kernel folds, and how each kind of field reads, writes and checks them.

use std::cmp::Ordering;

use crate::avro::{write_long, write_text, Reader};

const INTEGER_MIN: f64 = -9_223_372_036_854_775_808.0;
const INTEGER_END: f64 = 18_446_744_073_709_551_616.0;

/// A canonical value (avro/canonical.py). A Float is finite and is no integer in [-2^63, 2^64).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Text(&'a str),
    Integer(i128),
    Float(f64),
    Boolean(bool),
}

impl<'a> Value<'a> {
    /// A number under the number rules; None for NaN and infinity.
    fn number(given: f64) -> Option<Self> {
        if !given.is_finite() {
            None
        } else if is_integer(given) {
            Some(Value::Integer(given as i128))
        } else {
            Some(Value::Float(given))
        }
    }

    /// How two values of one field compare; None where their kinds are not ordered.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Value::Text(one), Value::Text(two)) => Some(one.cmp(two)),
            (Value::Integer(one), Value::Integer(two)) => Some(one.cmp(two)),
            (Value::Integer(_) | Value::Float(_), Value::Integer(_) | Value::Float(_)) => {
                self.as_double()?.partial_cmp(&other.as_double()?)
            }
            _ => None,
        }
    }

    fn as_double(&self) -> Option<f64> {
        match *self {
            Value::Integer(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }
}

fn is_integer(given: f64) -> bool {
    given.fract() == 0.0 && (INTEGER_MIN..INTEGER_END).contains(&given)
}

/// What a branch of a field holds.
#[derive(Clone, Debug)]
pub enum Kind {
    Text,
    /// Text in a form that Python checks when a record comes in: JSON and UUIDs.
    CheckedText,
    /// Integers in [low, end).
    Integer { low: i128, end: i128 },
    Boolean,
    Enum { symbols: Vec<String> },
    Float,
    Double,
}

impl Kind {
    /// The value of an observation's field. is_checked: whether Python has checked the record.
    pub fn read<'a>(&'a self, reader: &mut Reader<'a>, is_checked: bool) -> Option<Value<'a>> {
        match self {
            Kind::CheckedText if !is_checked => None,
            Kind::Text | Kind::CheckedText => reader.text().map(Value::Text),
            Kind::Integer { low, end } => {
                let number = i128::from(reader.long()?);
                (low..end).contains(&&number).then_some(Value::Integer(number))
            }
            Kind::Boolean => match reader.byte()? {
                0 => Some(Value::Boolean(false)),
                1 => Some(Value::Boolean(true)),
                _ => None,
            },
            Kind::Enum { symbols } => symbols.get(reader.count()?).map(|symbol| Value::Text(symbol)),
            Kind::Float => Value::number(f32::from_le_bytes(reader.take(4)?.try_into().ok()?).into()),
            Kind::Double => Value::number(f64::from_le_bytes(reader.take(8)?.try_into().ok()?)),
        }
    }

    /// Whether a stored value is one that `read` gives, and `write` can write.
    pub fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Text | Kind::CheckedText, Value::Text(_)) | (Kind::Boolean, Value::Boolean(_)) => true,
            (Kind::Enum { symbols }, Value::Text(text)) => symbols.iter().any(|symbol| symbol == text),
            (Kind::Integer { .. }, Value::Integer(number)) => i64::try_from(*number).is_ok(),
            // An integer here is the canonical form of a double, or float, that equals it.
            (Kind::Float, Value::Integer(number)) => (*number as f32) as i128 == *number,
            (Kind::Double, Value::Integer(number)) => (*number as f64) as i128 == *number,
            (Kind::Float, Value::Float(number)) => {
                number.is_finite() && !is_integer(*number) && f64::from(*number as f32) == *number
            }
            (Kind::Double, Value::Float(number)) => number.is_finite() && !is_integer(*number),
            _ => false,
        }
    }

    /// The Avro bytes of a value that the kind holds.
    pub fn write(&self, out: &mut Vec<u8>, value: &Value) -> Option<()> {
        match (self, value) {
            (Kind::Text | Kind::CheckedText, Value::Text(text)) => write_text(out, text),
            (Kind::Integer { .. }, Value::Integer(number)) => write_long(out, i64::try_from(*number).ok()?),
            (Kind::Boolean, Value::Boolean(truth)) => out.push((*truth).into()),
            (Kind::Enum { symbols }, Value::Text(text)) => {
                let place = symbols.iter().position(|symbol| symbol == text)?;
                write_long(out, i64::try_from(place).ok()?);
            }
            (Kind::Float, _) => out.extend_from_slice(&(value.as_double()? as f32).to_le_bytes()),
            (Kind::Double, _) => out.extend_from_slice(&value.as_double()?.to_le_bytes()),
            _ => return None,
        }
        Some(())
    }
}
