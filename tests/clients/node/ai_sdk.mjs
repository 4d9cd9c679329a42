// The Vercel AI SDK against two servers: node ai_sdk.mjs BUILT_IN_URL SCRIPTED_URL

import assert from 'node:assert/strict'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createDeepSeek } from '@ai-sdk/deepseek'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

globalThis.AI_SDK_LOG_WARNINGS = false
const [builtIn, scripted] = process.argv.slice(2)

// Each provider: its model on a server, and what asks that model to think.
const providers = {
  'openai chat': {
    model: url => createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).chat('m'),
    thinking: { openai: { reasoningEffort: 'high', forceReasoning: true } },
    hidesReasoning: true, // OpenAI's chats have none
  },
  'openai responses': {
    model: url => createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).responses('m'),
    thinking: { openai: { reasoningEffort: 'high', reasoningSummary: 'auto', forceReasoning: true } },
    hidesReasoning: true, // only summaries are read
  },
  'openai-compatible': {
    model: url =>
      createOpenAICompatible({
        name: 'ballast', baseURL: `${url}/v1`, apiKey: 'none', supportsStructuredOutputs: true, includeUsage: true,
      })('m'),
    thinking: { ballast: { reasoningEffort: 'high' } },
  },
  anthropic: {
    model: url => createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })('m'),
    thinking: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } },
  },
  deepseek: {
    model: url => createDeepSeek({ baseURL: `${url}/v1`, apiKey: 'none' })('m'),
    thinking: { deepseek: { thinking: { type: 'enabled' } } },
    describesJson: true, // its structured output is json_object, with the schema in the prompt
  },
}

const painting = z.strictObject({ colour: z.enum(['red', 'green']), sure: z.boolean() })
const common = { maxRetries: 0, maxOutputTokens: 900 }

const checks = {
  async text({ model }) {
    const asked = { ...common, model: model(builtIn), prompt: 'hello', temperature: 0, maxOutputTokens: 16 }
    const whole = await generateText(asked)
    assert.equal(whole.usage.outputTokens, 16)
    assert.equal(whole.finishReason, 'length')
    assert.ok(whole.response.headers['x-request-id'])
    const stream = streamText(asked)
    let text = ''
    for await (const part of stream.textStream) text += part
    assert.equal(text, whole.text)
    assert.equal((await stream.usage).outputTokens, 16)
    assert.equal((await stream.usage).inputTokens, whole.usage.inputTokens)
  },

  async tools({ model }) {
    for (const streams of [false, true]) {
      const called = []
      const weather = tool({
        description: 'The weather of a city.',
        inputSchema: z.object({ city: z.string(), note: z.string() }),
        execute: async input => {
          called.push(input)
          return 'It is sunny. say hello'
        },
      })
      const asked = {
        ...common, model: model(scripted), prompt: 'say v31', tools: { weather }, stopWhen: stepCountIs(3),
      }
      const reply = streams ? streamText({ ...asked, onError: ({ error }) => { throw error } }) : await generateText(asked)
      assert.equal(await reply.text, 'hello')
      assert.deepEqual((await reply.steps).map(step => step.finishReason), ['tool-calls', 'stop'])
      assert.deepEqual(called, [{ city: 'Paris', note: '中 "x"' }])
    }
  },

  async 'forced tools'({ model }) {
    const paint = tool({ description: 'Paints.', inputSchema: painting })
    for (const toolChoice of ['required', { type: 'tool', toolName: 'paint' }]) {
      const asked = { ...common, model: model(builtIn), prompt: 'Paint.', tools: { paint }, toolChoice }
      const { toolCalls } = await generateText(asked)
      assert.equal(toolCalls[0].toolName, 'paint')
      painting.parse(toolCalls[0].input)
    }
  },

  async 'structured output'({ model, describesJson }) {
    // The built-in model cannot follow a schema that it only reads.
    const [url, prompt, schema] = describesJson
      ? [scripted, 'say object', z.strictObject({ a: z.number() })]
      : [builtIn, 'Paint.', painting]
    const asked = { ...common, model: model(url), prompt, output: Output.object({ schema }) }
    schema.parse((await generateText(asked)).output)
    const stream = streamText({ ...asked, onError: ({ error }) => { throw error } })
    let last
    for await (const part of stream.partialOutputStream) last = part
    schema.parse(last)
  },

  async reasoning({ model, thinking, hidesReasoning }) {
    const asked = { ...common, model: model(scripted), prompt: 'say thought', providerOptions: thinking }
    const whole = await generateText(asked)
    assert.equal(whole.text, 'It is 4.')
    const stream = streamText(asked)
    assert.equal(await stream.text, 'It is 4.')
    if (hidesReasoning) return
    assert.equal(whole.reasoningText, 'Let me see.')
    assert.equal(await stream.reasoningText, 'Let me see.')
  },

  async errors({ model }) {
    const asked = { ...common, model: model(builtIn), prompt: 'long '.repeat(40_000) }
    await assert.rejects(generateText(asked), error => {
      assert.ok(APICallError.isInstance(error), error)
      assert.equal(error.statusCode, 400)
      assert.equal(error.isRetryable, false)
      assert.match(error.message, /token/)
      return true
    })
    let seen
    await streamText({ ...asked, onError: ({ error }) => { seen = error } }).consumeStream()
    assert.ok(APICallError.isInstance(seen), seen)
  },

  async cancels({ model }) {
    const leave = new AbortController()
    const stream = streamText({
      ...common, model: model(builtIn), prompt: 'hello', abortSignal: leave.signal, onError: () => {},
    })
    for await (const part of stream.fullStream) if (part.type === 'text-delta') leave.abort()
    assert.ok(leave.signal.aborted)
  },
}

for (const [name, check] of Object.entries(checks)) {
  for (const [provider, given] of Object.entries(providers)) {
    await check(given).catch(error => {
      throw new Error(`${provider}: ${name}`, { cause: error })
    })
  }
}
console.log(`ai-sdk (${Object.keys(providers).join(', ')}): ${Object.keys(checks).join(', ')}`)
