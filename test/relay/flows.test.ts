import { expect, test } from 'vitest'
import { Relay } from '../../src/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'

test('a flow that could not go on is told and begun anew, rather than missed by nobody', async () => {
  let opened = 0
  const source = {
    name: 'stream',
    features: {},
    open: async () => {
      if (opened++ === 0) throw new Error('not yet')
      return undefined
    },
  }
  // A user's random that throws ends the flow that asked it: nothing else reaches the outside of a flow.
  const random = {
    next: () => {
      throw new Error('no luck')
    },
    fill: () => {},
  }
  const telemetry = recordTelemetry(['warning'])
  const relay = new Relay({ from: source, to: async () => {}, lease: 150, poll: '10ms', random })
  await relay.start()
  const warning = await telemetry.next('warning')
  expect(warning).toEqual({ where: 'relay stream', message: expect.stringMatching(/begins anew: .*no luck/) })
  await expect.poll(() => opened).toBeGreaterThan(1)
  await relay.stop()
  telemetry.stop()
})
