// OpenAI's JavaScript SDK, as a program uses it: whole, streamed, by responses, and refused.
// node openai_ways.mjs SDK_FOLDER BASE_URL writes what the SDK gave, and the bytes of what it was sent, as one JSON text.
import { createHash } from "node:crypto";
import { pathToFileURL } from "node:url";

const [folder, baseURL] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(`${folder}/index.mjs`).href);

const bodies = [];
async function watched(url, options) {
  const response = await fetch(url, options);
  const [given, kept] = response.body.tee();
  bodies.push(new Response(kept).arrayBuffer().then((data) => createHash("sha256").update(Buffer.from(data)).digest("hex")));
  return new Response(given, response);
}

const client = new OpenAI({ apiKey: "sk-a-key-that-nobody-may-see", baseURL, maxRetries: 0, fetch: watched });
const asked = (content) => ({ model: "gpt-x", messages: [{ role: "user", content }] });

const said = {};
said.whole = await client.chat.completions.create(asked("whole, from JavaScript 🤔"));
said.streamed = [];
for await (const chunk of await client.chat.completions.create({ ...asked("streamed, from JavaScript"), stream: true })) {
  said.streamed.push(chunk);
}
said.responses = await client.responses.create({ model: "gpt-x", input: "by responses, from JavaScript" });
said.embeddings = await client.embeddings.create({ model: "e", input: "embedded", encoding_format: "float" });
said.bodies = await Promise.all(bodies);
process.stdout.write(JSON.stringify(said));
