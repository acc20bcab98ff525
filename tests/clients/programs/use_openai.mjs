// The npm package openai: the arguments are the wire, `chat` or `responses`, and `talk` or `recall`.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.TURNLOG_URL, apiKey: process.env.TURNLOG_KEY, maxRetries: 0 });
const model = "m";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const called = [];
const weather = ({ city }) => {
  called.push(city);
  return "rain";
};
const pieces = [];
const dog = { role: "user", content: "My dog is called Sesame." };
const cat = { role: "user", content: "And my cat is called Poppy." };
const rain = { role: "user", content: "What is the weather in Ulm?" };
const question = { role: "user", content: "What is my dog called?" };

async function chat() {
  const first = await client.chat.completions.create({ model, messages: [dog] });
  const heard = first.choices[0].message;
  const stream = client.chat.completions.stream({ model, messages: [dog, heard, cat] });
  stream.on("content", (delta) => pieces.push(delta));
  await stream.finalChatCompletion();
  const tool = { name: "weather", description: "The weather in a city.", parameters, parse: JSON.parse, function: weather };
  const runner = client.chat.completions.runTools({ model, messages: [rain], tools: [{ type: "function", function: tool }] });
  const after_tool = await runner.finalContent();
  return { heard: heard.content, pieces, called, after_tool, tokens: first.usage.completion_tokens };
}

async function responses() {
  const first = await client.responses.create({ model, input: [dog] });
  const stream = client.responses.stream({ model, input: [cat], previous_response_id: first.id });
  stream.on("response.output_text.delta", (event) => pieces.push(event.delta));
  await stream.finalResponse();
  const tools = [{ type: "function", name: "weather", description: "The weather in a city.", parameters, strict: true }];
  const { id: conversation } = await client.conversations.create();
  let answer = await client.responses.create({ model, input: [rain], tools, conversation });
  for (;;) {
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) break;
    const input = calls.map(({ call_id, arguments: text }) => {
      return { type: "function_call_output", call_id, output: weather(JSON.parse(text)) };
    });
    answer = await client.responses.create({ model, input, tools, conversation });
  }
  const tokens = first.usage.output_tokens;
  return { heard: first.output_text, pieces, called, after_tool: answer.output_text, tokens };
}

async function recall() {
  if (wire === "responses") return (await client.responses.create({ model, input: [question] })).output_text;
  return (await client.chat.completions.create({ model, messages: [question] })).choices[0].message.content;
}

const [wire, part] = process.argv.slice(2);
const report = part === "recall" ? { recalled: await recall() } : await (wire === "responses" ? responses() : chat());
console.log(JSON.stringify(report));
