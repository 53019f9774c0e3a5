// OpenAI's Agents SDK: agents by chat and by responses, and realtime sessions over a WebSocket.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import test from 'node:test'
import { Agent, OpenAIProvider, Runner, setTraceProcessors, tool } from '@openai/agents'
import { RealtimeAgent, RealtimeSession } from '@openai/agents/realtime'
import { z } from 'zod'

setTraceProcessors([]) // Traces are made, but not sent to OpenAI.

const weather = tool({
  name: 'weather',
  description: 'Say what the weather is.',
  parameters: z.object({ text: z.string() }),
  execute: async () => 'no call: rain', // After this the pipeline calls nothing.
})

for (const useResponses of [false, true]) {
  test(`agents and tools, ${useResponses ? 'responses' : 'chat'}`, async () => {
    const runner = new Runner({ modelProvider: new OpenAIProvider({ useResponses }) })
    const agent = new Agent({ name: 'Assistant', instructions: 'Be brief.', tools: [weather] })
    const result = await runner.run(agent, 'hello there')
    assert.equal(result.finalOutput, 'None is needed.')
    const called = result.newItems.filter(each => each.type === 'tool_call_item').map(each => each.rawItem)
    assert.deepEqual(called.map(each => [each.name, each.arguments]), [['weather', '{"text": "hello there"}']])
    const streamed = await runner.run(agent, 'hello there', { stream: true })
    let text = ''
    for await (const piece of streamed.toTextStream()) text += piece
    assert.equal(text, 'So:None is needed.')
  })
}

test('a realtime session', { timeout: 60_000 }, async () => {
  const agent = new RealtimeAgent({ name: 'Assistant', instructions: 'Be brief.' })
  const session = new RealtimeSession(agent, { transport: 'websocket' })
  const address = process.env.OPENAI_BASE_URL.replace('http', 'ws')
  const failed = new Promise((_, reject) => session.on('error', ({ error }) => reject(new Error(JSON.stringify(error)))))
  let size = 0
  session.on('audio', event => { size += event.data.byteLength })
  const next = () => {
    size = 0
    return Promise.race([failed, new Promise(resolve => session.once('agent_end', (_, __, output) => resolve(output)))])
  }
  await session.connect({ apiKey: process.env.OPENAI_API_KEY, url: `${address}/realtime?model=tones` })
  let answer = next()
  session.sendAudio(new Uint8Array(readFileSync(process.env.VOICE)).buffer)
  const said = await answer
  assert.match(said, /^Be brief\. audio:/)
  assert.ok(Math.abs(size / 2 / 24_000 - 0.3) < 0.02)
  answer = next()
  session.sendMessage('history')
  assert.equal(await answer, `system=Be brief. assistant=${said}`)
  session.close()
})
