//! Canonical values (avro/canonical.py), with Python's equality and order.

use std::cmp::Ordering;

const INTEGER_MIN: f64 = -9_223_372_036_854_775_808.0;
const INTEGER_END: f64 = 18_446_744_073_709_551_616.0;

/// A canonical value. A Float is finite, and is not an integer in [-2^63, 2^64). A Map's keys are distinct, in their
/// given order.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Text(&'a str),
    Bytes(&'a [u8]),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    List(Vec<Value<'a>>),
    Map(Vec<(&'a str, Value<'a>)>),
}

impl PartialEq for Value<'_> {
    /// Ignores the order of a map's keys.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Text(one), Value::Text(two)) => one == two,
            (Value::Bytes(one), Value::Bytes(two)) => one == two,
            (Value::Integer(one), Value::Integer(two)) => one == two,
            (Value::Float(one), Value::Float(two)) => one == two,
            (Value::Boolean(one), Value::Boolean(two)) => one == two,
            (Value::List(one), Value::List(two)) => one == two,
            (Value::Map(one), Value::Map(_)) => {
                other.members() == Some(one.len())
                    && one.iter().all(|(key, value)| other.member(key).is_some_and(|found| found == value))
            }
            _ => false,
        }
    }
}

impl<'a> Value<'a> {
    /// Converts a number by the number rules; None for NaN and infinity.
    pub fn number(given: f64) -> Option<Self> {
        if !given.is_finite() {
            None
        } else if is_integer(given) {
            Some(Value::Integer(given as i128))
        } else {
            Some(Value::Float(given))
        }
    }

    /// Returns a map's value at a key.
    pub fn member(&self, key: &str) -> Option<&Value<'a>> {
        match self {
            Value::Map(members) => members.iter().find(|(name, _)| *name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the number of a map's members.
    pub fn members(&self) -> Option<usize> {
        match self {
            Value::Map(members) => Some(members.len()),
            _ => None,
        }
    }

    /// Compares two values of one field; None if their kinds are not ordered.
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

    pub fn as_double(&self) -> Option<f64> {
        match *self {
            Value::Integer(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }
}

pub fn is_integer(given: f64) -> bool {
    given.fract() == 0.0 && (INTEGER_MIN..INTEGER_END).contains(&given)
}
