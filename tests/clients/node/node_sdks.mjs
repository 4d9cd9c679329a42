// OpenAI's and Anthropic's own clients against two servers: node node_sdks.mjs BUILT_IN_URL SCRIPTED_URL

import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'

const [builtIn, scripted] = process.argv.slice(2)
const openai = url => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
const anthropic = url => new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 })

const HELLO = [{ role: 'user', content: 'hello' }]
const TOO_LONG = [{ role: 'user', content: 'long '.repeat(40_000) }]
const PARIS = { city: 'Paris', note: '中 "x"' }
const CITY = { type: 'object', properties: { city: { type: 'string' }, note: { type: 'string' } } }
const PAINTING = {
  type: 'object',
  properties: { colour: { enum: ['red', 'green'] }, sure: { type: 'boolean' } },
  required: ['colour', 'sure'],
  additionalProperties: false,
}
const SAID = { role: 'user', content: 'say v31' }
const RESULT = 'It is sunny. say hello'

function assertPainted(text) {
  const { colour, sure } = JSON.parse(text)
  assert.ok(['red', 'green'].includes(colour) && [true, false].includes(sure), text)
}

const checks = {
  async 'chat: stream'() {
    const asked = { model: 'm', messages: HELLO, temperature: 0, max_tokens: 16 }
    const whole = await openai(builtIn).chat.completions.create(asked)
    const stream = openai(builtIn).chat.completions.stream({ ...asked, stream_options: { include_usage: true } })
    assert.equal(await stream.finalContent(), whole.choices[0].message.content)
    assert.equal((await stream.totalUsage()).completion_tokens, 16)
  },

  async 'chat: tools'() {
    const called = []
    const weather = {
      type: 'function',
      function: {
        name: 'weather', description: 'Weather.', parameters: CITY, parse: JSON.parse,
        function: input => (called.push(input), RESULT),
      },
    }
    for (const stream of [false, true]) {
      const runner = openai(scripted).chat.completions.runTools({ model: 'm', messages: [SAID], tools: [weather], stream })
      assert.equal(await runner.finalContent(), 'hello')
    }
    assert.deepEqual(called, [PARIS, PARIS])
  },

  async 'chat: structured output'() {
    const response_format = { type: 'json_schema', json_schema: { name: 'painting', schema: PAINTING, strict: true } }
    const asked = { model: 'm', messages: HELLO, response_format, max_tokens: 900 }
    assertPainted((await openai(builtIn).chat.completions.parse(asked)).choices[0].message.content)
  },

  async 'chat: errors'() {
    await assert.rejects(openai(builtIn).chat.completions.create({ model: 'm', messages: TOO_LONG }), error => {
      assert.ok(error instanceof OpenAI.BadRequestError, error)
      assert.equal(error.code, 'context_length_exceeded')
      assert.ok(error.requestID)
      return true
    })
    await assert.rejects(openai(builtIn).models.retrieve('no-such-model'), OpenAI.NotFoundError)
  },

  async 'responses: stream'() {
    const asked = { model: 'm', input: 'hello', temperature: 0, max_output_tokens: 16 }
    const whole = await openai(builtIn).responses.create(asked)
    const stream = openai(builtIn).responses.stream(asked)
    assert.equal((await stream.finalResponse()).output_text, whole.output_text)
    assert.equal(whole.incomplete_details.reason, 'max_output_tokens')
  },

  async 'responses: tools'() {
    const asked = { model: 'm', tools: [{ type: 'function', name: 'weather', parameters: CITY, strict: false }] }
    const input = [SAID]
    const { output } = await openai(scripted).responses.stream({ ...asked, input }).finalResponse()
    assert.deepEqual(JSON.parse(output[0].arguments), PARIS)
    input.push(...output, { type: 'function_call_output', call_id: output[0].call_id, output: RESULT })
    assert.equal((await openai(scripted).responses.create({ ...asked, input })).output_text, 'hello')
  },

  async 'messages: stream'() {
    const asked = { model: 'm', messages: HELLO, temperature: 0, max_tokens: 16 }
    const whole = await anthropic(builtIn).messages.create(asked)
    assert.equal(whole.stop_reason, 'max_tokens')
    const stream = anthropic(builtIn).messages.stream(asked)
    assert.equal(await stream.finalText(), whole.content[0].text)
    assert.equal((await stream.finalMessage()).usage.output_tokens, 16)
    const { input_tokens } = await anthropic(builtIn).messages.countTokens({ model: 'm', messages: HELLO })
    assert.equal(whole.usage.input_tokens + whole.usage.cache_read_input_tokens, input_tokens)
  },

  async 'messages: thinking'() {
    const thinking = { type: 'enabled', budget_tokens: 1024 }
    const asked = { model: 'm', max_tokens: 2000, thinking, messages: [{ role: 'user', content: 'say thought' }] }
    const { content } = await anthropic(scripted).messages.stream(asked).finalMessage()
    assert.deepEqual(content.map(block => block.thinking ?? block.text), ['Let me see.', 'It is 4.'])
  },

  async 'messages: tools'() {
    const called = []
    const weather = {
      name: 'weather', description: 'Weather.', input_schema: CITY, parse: input => input,
      run: input => (called.push(input), RESULT),
    }
    for (const stream of [false, true]) {
      const asked = { model: 'm', max_tokens: 500, messages: [SAID], tools: [weather], stream }
      const message = await anthropic(scripted).beta.messages.toolRunner(asked).runUntilDone()
      assert.equal(message.content[0].text, 'hello')
    }
    assert.deepEqual(called, [PARIS, PARIS])
  },

  async 'messages: structured output'() {
    const output_config = { format: { type: 'json_schema', schema: PAINTING } }
    const message = await anthropic(builtIn).messages.create({ model: 'm', max_tokens: 900, messages: HELLO, output_config })
    assertPainted(message.content[0].text)
  },

  async 'messages: errors'() {
    await assert.rejects(anthropic(builtIn).messages.create({ model: 'm', max_tokens: 5, messages: TOO_LONG }), error => {
      assert.ok(error instanceof Anthropic.BadRequestError, error)
      assert.equal(error.error.error.type, 'invalid_request_error')
      assert.ok(error.requestID)
      return true
    })
    await assert.rejects(anthropic(builtIn).models.retrieve('no-such-model'), Anthropic.NotFoundError)
  },
}

for (const [name, check] of Object.entries(checks)) {
  await check().catch(error => {
    throw new Error(name, { cause: error })
  })
}
console.log(`openai and @anthropic-ai/sdk on Node: ${Object.keys(checks).join(', ')}`)
