// Recomputes the published vectors (avro/vectors/*.json) with nothing but Node's own library, sharing no code with refold:
// what an author gives -> canonical values -> deterministic CBOR -> ids, and the digests above them.
//
//   node tests/node/vectors.mjs [FOLDER]      exit 0 and a count, or 1 and the name of each case that differs
//
// Canonical values: BigInt for integers, number for other floats, string, boolean, null, Buffer, Array, Map.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const FOLDER = process.argv[2] ?? fileURLToPath(new URL("../../avro/vectors", import.meta.url));
const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest();
const load = (name) => JSON.parse(readFileSync(join(FOLDER, name), "utf8"));

// ---- numbers: integral and in [-2^63, 2^64) is an integer, -0 is 0, the rest are floats

function normal(value) {
  if (typeof value === "bigint") {
    if (value >= -(2n ** 63n) && value < 2n ** 64n) return value;
    const rounded = Number(value);
    if (!Number.isFinite(rounded) || (BigInt(rounded) !== value && String(rounded) !== String(value))) {
      throw new RangeError(`${value}: no integer in range, and no double`);
    }
    return rounded;
  }
  if (!Number.isFinite(value)) throw new RangeError("NaN and infinity are not values");
  const integral = Number.isInteger(value) && value >= -(2 ** 63) && value < 2 ** 64;
  return integral ? BigInt(value) : value;
}

// ---- deterministic CBOR (RFC 8949, 4.2.1)

function head(major, argument) {
  const n = BigInt(argument);
  if (n < 24n) return Buffer.from([(major << 5) | Number(n)]);
  for (const [additional, width] of [[24, 1], [25, 2], [26, 4], [27, 8]]) {
    if (n < 1n << BigInt(8 * width)) {
      const bytes = Buffer.from(n.toString(16).padStart(2 * width, "0"), "hex");
      return Buffer.concat([Buffer.from([(major << 5) | additional]), bytes]);
    }
  }
  throw new RangeError(`${n}: more than 64 bits`);
}

// The 16 bits of a half float, or undefined where it does not hold the value exactly.
function half(value) {
  const size = Math.abs(value);
  if (size > 65504) return undefined;
  let exponent = -14;
  while (exponent < 15 && size >= 2 ** (exponent + 1)) exponent += 1;
  const mantissa = size / 2 ** (exponent - 10);
  if (!Number.isInteger(mantissa)) return undefined;
  const bits = mantissa >= 1024 ? ((exponent + 15) << 10) + (mantissa - 1024) : mantissa;
  return (value < 0 ? 0x8000 : 0) + bits;
}

function float(value) {
  const bits = half(value);
  const out = Buffer.alloc(9);
  if (bits !== undefined) {
    out[0] = 0xf9;
    out.writeUInt16BE(bits, 1);
    return out.subarray(0, 3);
  }
  if (Math.fround(value) === value) {
    out[0] = 0xfa;
    out.writeFloatBE(value, 1);
    return out.subarray(0, 5);
  }
  out[0] = 0xfb;
  out.writeDoubleBE(value, 1);
  return out;
}

function cbor(value) {
  if (value === null) return Buffer.from([0xf6]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xf5 : 0xf4]);
  if (typeof value === "bigint") return value >= 0n ? head(0, value) : head(1, -1n - value);
  if (typeof value === "number") return float(value);
  if (typeof value === "string") return Buffer.concat([head(3, Buffer.byteLength(value)), Buffer.from(value)]);
  if (Buffer.isBuffer(value)) return Buffer.concat([head(2, value.length), value]);
  if (Array.isArray(value)) return Buffer.concat([head(4, value.length), ...value.map(cbor)]);
  const members = [...value].map(([key, each]) => [cbor(key), cbor(each)]);
  members.sort(([left], [right]) => Buffer.compare(left, right));
  return Buffer.concat([head(5, members.length), ...members.flat()]);
}

// ---- canonical JSON: keys by code point (which is the order of their UTF-8), no white space, ECMAScript's numbers

function jsonText(value) {
  if (Buffer.isBuffer(value)) throw new TypeError("JSON has no bytes");
  if (typeof value === "bigint" || typeof value === "number") return String(normal(value));
  if (Array.isArray(value)) return `[${value.map(jsonText).join(",")}]`;
  if (!(value instanceof Map)) return JSON.stringify(value);
  const keys = [...value.keys()].sort((left, right) => Buffer.compare(Buffer.from(left), Buffer.from(right)));
  return `{${keys.map((key) => `${JSON.stringify(key)}:${jsonText(value.get(key))}`).join(",")}}`;
}

// ---- tagged JSON: how the files write values

class Blob { constructor(tree) { this.tree = tree; } }
class Sealed { constructor(tree) { this.tree = tree; } }
class Decimal { constructor(text) { this.text = text; } }

function untag(tree) {
  if (tree === null || typeof tree !== "object") return tree;
  if (Array.isArray(tree)) return tree.map(untag);
  const members = Object.entries(tree);
  const [mark, inner] = members[0] ?? [];
  if (members.length === 1 && mark === "$int") return BigInt(inner);
  if (members.length === 1 && mark === "$float") return Number(inner);
  if (members.length === 1 && mark === "$bytes") return Buffer.from(inner, "hex");
  if (members.length === 1 && mark === "$decimal") return new Decimal(inner);
  if (members.length === 1 && mark === "$blob") {
    return new Blob(new Map([["hash", Buffer.from(inner.hash, "hex")], ["size", untag(inner.size)], ["media_type", inner.media_type]]));
  }
  if (members.length === 1 && mark === "$sealed") {
    return new Sealed(new Map([["key_id", inner.key_id], ["ciphertext", Buffer.from(inner.ciphertext, "hex")]]));
  }
  return new Map(members.map(([key, each]) => [key, untag(each)]));
}

// ---- values as the type's definition stores them

const OPTIONS = new Set(["null", "refold.Blob", "refold.Sealed"]);
const nameOf = (type) => (typeof type === "string" ? type : type.name ?? type.type);

function decimal({ text }) {
  const [, sign, whole, fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:E([+-]?\d+))?$/.exec(text);
  let unscaled = BigInt(whole + fraction);
  let scale = fraction.length - Number(exponent);
  while (unscaled !== 0n && unscaled % 10n === 0n) [unscaled, scale] = [unscaled / 10n, scale - 1];
  if (unscaled === 0n) scale = 0;
  if (scale < 0) [unscaled, scale] = [unscaled * 10n ** BigInt(-scale), 0];
  return new Map([["unscaled", sign ? -unscaled : unscaled], ["scale", BigInt(scale)]]);
}

function record(type, given, limit) {
  const tree = new Map();
  for (const field of type.fields) {
    const first = field["refold.name"] ?? field.name;
    const value = given.get(field.name) ?? given.get(first) ?? null;
    if (value !== null) tree.set(first, canonical(field.type, value, limit));
  }
  return tree;
}

function plain(type, given, limit) {
  const kind = typeof type === "string" ? type : type.type;
  switch (type.logicalType) {
    case "decimal": return decimal(given);
    case "uuid": return given.toLowerCase();
    case "refold-json": return jsonText(given);
  }
  switch (kind) {
    case "float": return normal(Math.fround(Number(given)));
    case "double": return normal(Number(given));
    case "int": case "long": return normal(given);
    case "array": return given.map((each) => canonical(type.items, each, limit));
    case "map": return new Map([...given].map(([key, each]) => [key, canonical(type.values, each, limit)]));
    case "record": return record(type, given, limit);
    default: return given; // boolean, string, bytes, fixed, enum
  }
}

function canonical(type, given, limit) {
  const choices = Array.isArray(type) ? type : [type];
  if (given === null && choices.includes("null")) return null;
  if (given instanceof Blob || given instanceof Sealed) return given.tree;
  const chosen = choices.find((choice) => !OPTIONS.has(nameOf(choice)));
  const value = plain(chosen, given, limit);
  if (!choices.includes("refold.Blob") || cbor(value).length <= limit) return value;
  const [content, mediaType] =
    Buffer.isBuffer(value) ? [value, "application/octet-stream"]
    : typeof value !== "string" ? [cbor(value), "application/cbor"]
    : [Buffer.from(value), chosen.logicalType === "refold-json" ? "application/json" : "text/plain"];
  return new Map([["hash", sha256(content)], ["size", BigInt(content.length)], ["media_type", mediaType]]);
}

// ---- identity

const integer = (given) => (typeof given === "number" ? BigInt(given) : untag(given));
const ids = (given) => [...new Set(given)].sort().map((id) => Buffer.from(id, "hex"));

function patchOf(definition, given) {
  const tree = new Map();
  for (const [name, value] of Object.entries(given)) {
    const field = definition.fields.find((each) => each.name === name || each["refold.name"] === name);
    const limit = field["refold.inline"] ?? 256 * 1024;
    tree.set(field["refold.name"] ?? field.name, canonical(field.type, untag(value), limit));
  }
  return tree;
}

function identityTree(definition, given) {
  const tree = new Map([["e", given.entity], ["t", given.entity.split("/", 1)[0]], ["k", given.kind ?? "assert"]]);
  const put = (key, value, isDefault) => { if (!isDefault) tree.set(key, value); };
  const observedAt = integer(given.observed_at);
  put("o", observedAt, observedAt === 0n);
  put("p", integer(given.priority ?? 0), !given.priority);
  const source = new Map();
  for (const [name, value] of Object.entries(given.source ?? {})) {
    const part = name === "seq" ? integer(value) : value;
    if (part !== "" && part !== 0n) source.set(name, part);
  }
  put("s", source, source.size === 0);
  put("c", ids(given.causes ?? []), !given.causes?.length);
  const patch = patchOf(definition, given.patch ?? {});
  put("f", patch, patch.size === 0);
  const first = (name) => definition.fields.find((each) => each.name === name)?.["refold.name"] ?? name;
  const cleared = [...new Set((given.cleared ?? []).map(first))];
  put("x", cleared.sort((left, right) => Buffer.compare(Buffer.from(left), Buffer.from(right))), cleared.length === 0);
  put("r", ids(given.retracts ?? []), !given.retracts?.length);
  if (given.link) {
    const link = Object.entries(given.link).filter(([, value]) => value !== null);
    tree.set("l", new Map(link.map(([name, value]) => [name, typeof value === "string" ? value : integer(value)])));
  }
  put("u", given.subject, !given.subject);
  return tree;
}

const identify = (bytes) => sha256("refold/1\0", bytes);

// ---- order, slots, digests, cuts

function orderKey({ observed_at, agent, run, seq, id }) {
  const numbers = Buffer.alloc(16);
  numbers.writeBigUInt64BE(untag(observed_at) + (1n << 63n), 0);
  numbers.writeBigUInt64BE(untag(seq), 8);
  const [at, counted] = [numbers.subarray(0, 8), numbers.subarray(8)];
  return Buffer.concat([at, Buffer.from(`${agent}\0${run}\0`), counted, Buffer.from(id, "hex")]);
}

function murmur2(key) {
  const mix = 0x5bd1e995;
  let hash = 0x9747b28c ^ key.length;
  let at = 0;
  for (; key.length - at >= 4; at += 4) {
    let word = Math.imul(key.readInt32LE(at), mix);
    word = Math.imul(word ^ (word >>> 24), mix);
    hash = Math.imul(hash, mix) ^ word;
  }
  if (at < key.length) {
    let rest = 0;
    for (let index = key.length - 1; index >= at; index -= 1) rest = (rest << 8) | key[index];
    hash = Math.imul(hash ^ rest, mix);
  }
  hash = Math.imul(hash ^ (hash >>> 13), mix);
  return (hash ^ (hash >>> 15)) | 0;
}

const SLOTS = 1024;
const EMPTY = Buffer.alloc(32);
const slotOf = (key) => (murmur2(Buffer.from(key)) & 0x7fffffff) % SLOTS;
const bucketOf = (key) => sha256(key)[0];

function bucketDigest(members) {
  if (members.length === 0) return EMPTY;
  const parts = members.map(([key, hash]) => [Buffer.from(key), Buffer.from(hash, "hex")]);
  parts.sort(([left], [right]) => Buffer.compare(left, right));
  return sha256(...parts.flatMap(([key, hash]) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(key.length);
    return [length, key, hash];
  }));
}

function slotDigest(members) {
  if (members.length === 0) return EMPTY;
  const buckets = Array.from({ length: 256 }, (_, bucket) => members.filter(([key]) => bucketOf(key) === bucket));
  return sha256(...buckets.map(bucketDigest));
}

function rootOf(entities) {
  const count = Buffer.alloc(8);
  count.writeBigUInt64BE(BigInt(entities.length));
  const slots = Array.from({ length: SLOTS }, (_, slot) => slotDigest(entities.filter(([key]) => slotOf(key) === slot)));
  return sha256("refold-root/1", count, ...slots);
}

function cutBytes(given) {
  const offsets = Object.entries(given.offsets).map(([partition, offset]) => [BigInt(partition), untag(offset)]);
  const tree = new Map([
    ["l", Buffer.from(given.log_id, "hex")], ["p", new Map(offsets)], ["s", BigInt(given.schemas)],
    ["t", Buffer.from(given.types_digest, "hex")], ["v", BigInt(given.fold_version)],
  ]);
  if (given.observed_until !== null) tree.set("o", untag(given.observed_until));
  return cbor(tree);
}

// ---- the checks

let checked = 0;
const failures = [];

function check(file, name, what, found, expected) {
  checked += 1;
  if (found !== expected) failures.push(`${file}: ${name}: ${what} is ${found}, not ${expected}`);
}

function each(file, cases, body) {
  for (const one of cases) {
    try {
      body(one, (what, found, expected) => check(file, one.name, what, found, expected));
    } catch (error) {
      failures.push(`${file}: ${one.name}: ${error.stack}`);
    }
  }
}

const identity = load("identity.json");
const idOf = new Map(identity.cases.map((one) => [one.name, one.id]));
each("identity.json", identity.cases, (one, is) => {
  const bytes = cbor(identityTree(identity.definition, one.given));
  is("cbor", bytes.toString("hex"), one.cbor);
  is("id", identify(bytes).toString("hex"), one.id);
  if (one.same_as) is(`the id of ${one.same_as}`, idOf.get(one.same_as), one.id);
});

const wire = load("wire.json");
const schemaId = sha256(wire.schema).readUInt32BE() >>> 1;
check("wire.json", "schema", "its id", schemaId, wire.schema_id);
each("wire.json", wire.cases, (one, is) => {
  const message = Buffer.from(one.message, "hex");
  is("first byte", message[0], 0);
  is("schema id", message.readUInt32BE(1), schemaId);
  is("id", one.id, idOf.get(one.name));
});

each("canonical_json.json", load("canonical_json.json").cases, (one, is) => {
  if ("text" in one) {
    is("text", jsonText(untag(one.value)), one.text);
    return;
  }
  let text;
  try {
    text = jsonText(untag(one.refused));
  } catch {
    text = undefined;
  }
  is("text", text, undefined);
});

const state = load("state.json");
each("state.json", state.cases, (one, is) => {
  const found = one.observations.map((given) => identify(cbor(identityTree(state.definition, given))).toString("hex"));
  is("ids", found.join(), one.ids.join());
  const bytes = cbor(untag(one.state));
  is("cbor", bytes.toString("hex"), one.cbor);
  is("hash", sha256(bytes).toString("hex"), one.state_hash);
});

const order = load("order.json").cases;
each("order.json", order, (one, is) => is("key", orderKey(one).toString("hex"), one.key));
check("order.json", "all", "order", [...order.map((one) => one.key)].sort().join(), order.map((one) => one.key).join());

const root = load("root.json");
each("root.json", root.keys, (one, is) => {
  is("murmur2", murmur2(Buffer.from(one.name)), one.murmur2);
  is("slot", slotOf(one.name), one.slot);
  is("bucket", bucketOf(one.name), one.bucket);
  is("partition", slotOf(one.name) % 8, one.partition_of_8);
});
each("root.json", root.cases, (one, is) => {
  const entities = Object.entries(one.entities);
  for (const [slot, { digest, buckets }] of Object.entries(one.slots)) {
    const held = entities.filter(([key]) => slotOf(key) === Number(slot));
    is(`slot ${slot}`, slotDigest(held).toString("hex"), digest);
    for (const [bucket, expected] of Object.entries(buckets)) {
      const members = held.filter(([key]) => bucketOf(key) === Number(bucket));
      is(`bucket ${slot}/${bucket}`, bucketDigest(members).toString("hex"), expected);
    }
  }
  is("root", rootOf(entities).toString("hex"), one.root);
});

each("cut.json", load("cut.json").cases, (one, is) => {
  const bytes = cutBytes(one);
  is("text", `cut:1.${bytes.toString("base64url")}`, one.text);
  is("short", sha256(bytes).toString("hex").slice(0, 12), one.short);
});

for (const failure of failures) console.error(failure);
console.log(`${checked} values checked, ${failures.length} differ`);
process.exitCode = failures.length === 0 ? 0 : 1;
