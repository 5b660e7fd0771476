//! What must hold for the kernel's parts whatever bytes they are given: no panic, and one state for one history.

#![cfg(test)]
#![allow(dead_code)] // Python's boundary uses the rest

#[path = "../../src/avro.rs"]
mod avro;
#[path = "../../src/cbor.rs"]
mod cbor;
#[path = "../../src/cell.rs"]
mod cell;
#[path = "../../src/chunk.rs"]
mod chunk;
#[path = "../../src/exact.rs"]
mod exact;
#[path = "../../src/fold.rs"]
mod fold;
#[path = "../../src/json.rs"]
mod json;
#[path = "../../src/layout.rs"]
mod layout;
#[path = "../../src/links.rs"]
mod links;
#[path = "../../src/msgpack.rs"]
mod msgpack;
#[path = "../../src/node.rs"]
mod node;
#[path = "../../src/observation.rs"]
mod observation;
#[path = "../../src/order_keys.rs"]
mod order_keys;
#[path = "../../src/parts.rs"]
mod parts;
#[path = "../../src/place.rs"]
mod place;
#[path = "../../src/rows.rs"]
mod rows;
#[path = "../../src/state.rs"]
mod state;
#[path = "../../src/value.rs"]
mod value;

mod drawn;
mod properties;
