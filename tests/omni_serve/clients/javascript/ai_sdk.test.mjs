// Vercel's AI SDK: its provider for OpenAI, by chat and by responses, and that for compatible servers.
import assert from 'node:assert/strict'
import test from 'node:test'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { openai } from '@ai-sdk/openai'
import { Output, generateObject, generateSpeech, transcribe, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const compatible = createOpenAICompatible({
  name: 'omni', baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY, includeUsage: true,
})
const weather = tool({
  description: 'Say what the weather is.',
  inputSchema: z.object({ text: z.string() }),
  execute: async () => 'no call: rain', // After this the pipeline calls nothing.
})

for (const [name, model] of [['responses', openai('tones')], ['chat', openai.chat('tones')], ['compatible', compatible('tones')]]) {
  test(`texts, streams and tools, ${name}`, async () => {
    const said = await generateText({ model, system: 'Be brief.', prompt: 'history' })
    assert.equal(said.text, 'system=Be brief.')
    let text = ''
    const stream = streamText({ model, prompt: 'hello there', onError: ({ error }) => { throw error } })
    for await (const piece of stream.textStream) text += piece
    assert.equal(text, 'hello there')
    assert.equal((await stream.usage).outputTokens, 2)
    const called = await generateText({ model, prompt: 'hello there', tools: { weather }, stopWhen: stepCountIs(3) })
    assert.equal(called.text, 'None is needed.')
    assert.deepEqual(called.steps[0].toolCalls.map(each => [each.toolName, each.input]), [['weather', { text: 'hello there' }]])
  })
}

const place = z.object({ city: z.string(), size: z.enum(['large', 'small']), people: z.array(z.number().int()) })
const structured = createOpenAICompatible({
  name: 'omni', baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY, supportsStructuredOutputs: true,
})

for (const [name, model] of [['responses', openai('tones')], ['chat', openai.chat('tones')], ['compatible', structured('tones')]]) {
  test(`objects, ${name}`, async () => {
    const { object } = await generateObject({ model, schema: place, prompt: 'where' })
    assert.deepEqual(object, { city: 'one', size: 'large', people: [3] })
    const { output } = await generateText({ model, output: Output.object({ schema: place }), prompt: 'where' })
    assert.deepEqual(output, object)
  })
}

test('speech and transcriptions', async () => {
  const { audio } = await generateSpeech({ model: openai.speech('tones'), text: 'one two three', outputFormat: 'flac' })
  const found = await transcribe({ model: openai.transcription('tones'), audio: audio.uint8Array })
  assert.match(found.text, /^Write down what is said. audio:/)
})
