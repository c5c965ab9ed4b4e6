import { afterEach, beforeEach, expect, test } from 'vitest'
import { encodeData } from '../../src/core/index.ts'
import type { Message, RawMessage } from '../../src/index.ts'
import { BrokerProjector, projection } from '../../src/projection/index.ts'
import { recordTelemetry, scriptedSource, seededRandom } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { changed, created, itemAdded, orders, type World, world } from './support.ts'

describeWith(['postgres'], 'projection from a broker', () => {
  let at: World
  beforeEach(async () => {
    at = await world()
  })
  afterEach(() => at.end())

  const numbered = (message: Message, n: number) =>
    encodeData(message.with({ extensions: { sequence: String(n).padStart(19, '0') } }))

  async function project(messages: readonly Message[], view = orders()) {
    const source = scriptedSource([messages as RawMessage[]])
    const backoff = { min: 0, max: 0, jitter: 0 }
    const projector = new BrokerProjector({
      store: at.db,
      from: source,
      projection: view,
      parked: { backoff },
    })
    while (
      source.settlements.filter(({ settlement: { kind } }) => kind === 'done' || kind === 'dead').length <
      messages.length
    ) {
      await projector.runOnce()
    }
    await eventually('nothing parked is due', async () => (await projector.parked.runOnce()) === 0)
    return source
  }

  test('duplicates and replays do not take back newer state, and add nothing twice', async () => {
    const history = [created('o1'), itemAdded('o1', 5), changed('o1', 'paid'), changed('o1', 'sent')].map(
      (message, i) => numbered(message, i + 1),
    )
    await project(history)
    await project([history[0]!, history[2]!, history[1]!, ...history])
    expect(await at.rows()).toMatchObject([{ order_id: 'o1', status: 'sent', amount: '15', item_count: 1 }])
    expect(await at.db.projections.parked({}, {})).toEqual([])
  })

  test('one that parks an event and does not try it again says so, once; beside its `parked` it says nothing', async () => {
    const seen = recordTelemetry(['warning', 'projection.parked'])
    const follow = (name: string, ids: readonly string[]) => {
      const from = scriptedSource([ids.map((id, n) => numbered(changed(id, 'paid'), n + 1))])
      return { ids, from, projector: new BrokerProjector({ store: at.db, from, projection: orders(), name }) }
    }
    const beside = follow('beside', ['o1'])
    const alone = follow('alone', ['o2', 'o3'])
    try {
      await beside.projector.parked.start()
      for (const { projector, from, ids } of [beside, alone]) {
        await projector.start()
        await eventually('all are parked', () => from.settlements.length === ids.length)
        await projector.stop()
      }
    } finally {
      await beside.projector.parked.stop()
      seen.stop()
    }
    const said = seen.of('warning').filter(({ message }) => message.includes('`parked` is not started'))
    expect(said.map(({ where }) => where)).toEqual(['alone'])
    const parked = { reason: expect.stringContaining('[MISSING_ROW]'), error: { code: 'MISSING_ROW' } }
    expect(seen.of('projection.parked')).toMatchObject([parked, parked, parked])
  })

  test('an update that comes before its row is parked, holds its key, and is applied when the row is there', async () => {
    await project([numbered(changed('o1', 'paid'), 2), numbered(itemAdded('o1', 5), 3), numbered(created('o2'), 4)])
    expect(await at.db.projections.parked({}, {})).toMatchObject([
      { position: 2n, error: 'WaybillError [MISSING_ROW]: the row it changes is missing' },
      { position: 3n, error: undefined },
    ])
    expect((await at.rows()).map(({ order_id }) => order_id)).toEqual(['o2'])
    await project([numbered(created('o1'), 1)])
    expect(await at.db.projections.parked({}, {})).toEqual([])
    expect((await at.rows())[0]).toMatchObject({ order_id: 'o1', status: 'paid', amount: '15', item_count: 1 })
  })

  test('an event whose lookup fails is parked, so that none of its key passes it; without a handler by then, it is dropped', async () => {
    let broken = true
    const find = () => {
      if (broken) throw new Error('no answer')
      return 'Ann'
    }
    await project(
      [numbered(created('o1'), 1), numbered(changed('o1', 'paid'), 2), numbered(created('o2'), 3)],
      orders(find),
    )
    expect((await at.db.projections.parked({}, {})).map(({ position }) => position)).toEqual([1n, 2n, 3n])
    broken = false
    await project([numbered(changed('o1', 'sent'), 4)], orders(find))
    expect(await at.rows()).toMatchObject([{ order_id: 'o1', status: 'sent', buyer_name: 'Ann' }, { order_id: 'o2' }])
    broken = true
    await project([numbered(created('o3'), 5), numbered(changed('o3', 'paid'), 6)], orders(find))
    const few = projection('order_list_view', {
      version: 1,
      table: 'order_list_view',
      key: 'order_id',
      missing: 'skip',
    })
    await project([], few)
    expect(await at.db.projections.parked({}, {})).toEqual([])
  })

  test('at the bound of parked events nothing is applied and nothing passes; when there is room, it goes on', async () => {
    const messages = [changed('o1', 'a'), changed('o2', 'b'), created('o3'), created('o2'), created('o1')]
    const source = scriptedSource([messages.map((message, i) => numbered(message, i + 1)) as RawMessage[]])
    const from = source
    const projector = new BrokerProjector({
      store: at.db,
      from,
      projection: orders(),
      concurrency: 1,
      parked: { limit: 1 },
    })
    await projector.start()
    try {
      await eventually('it stands still and says so', () => /1 events are parked/.test(projector.status().reason ?? ''))
      expect(source.settlements.map(({ settlement }) => settlement.kind)).toEqual(['done'])
      expect(await at.rows()).toEqual([])
      const [first] = await at.db.projections.parked({}, {})
      await at.db.projections.skip(orders(), [first!.position], { by: 'test', note: 'room' })
      await source.settled(2, 20_000)
    } finally {
      await projector.stop()
    }
  })

  test('a row that is missing cannot stop a broker: the option is refused', () => {
    const projection = orders(undefined, { missing: 'fail' })
    expect(() => new BrokerProjector({ store: at.db, from: scriptedSource(), projection })).toThrow(
      /give 'park' or 'skip'/,
    )
  })

  test('a message without a number is dead, not guessed at', async () => {
    const source = await project([encodeData(created('o1'))])
    expect(source.settlements.map(({ settlement }) => settlement.kind)).toEqual(['dead'])
    expect(await at.rows().catch(() => [])).toEqual([])
  })

  test('random histories with duplicates and replays, in the order of each key: the view is the fold', async () => {
    const random = seededRandom(3)
    const pick = (n: number) => Math.floor(random.next() * n)
    const keys = ['a', 'b', 'c', 'd']
    const history = keys.flatMap((key) => [
      created(key),
      itemAdded(key, 1),
      changed(key, `s${pick(9)}`),
      itemAdded(key, 2),
    ])
    const messages = history.map((message, i) => numbered(message, i + 1))
    const lanes = keys.map((_, k) => messages.slice(k * 4, k * 4 + 4))
    const sent: Message[] = []
    while (lanes.some((lane) => lane.length > 0)) {
      const lane = lanes[pick(lanes.length)]!
      if (lane.length > 0) sent.push(lane.shift()!)
      // Whatever was sent may come again.
      if (sent.length > 0 && pick(2) === 0) sent.push(sent[pick(sent.length)]!)
    }
    await project(sent)
    const expected = history.filter((message) => message.type === 'order.status_changed')
    expect((await at.rows()).map(({ status, amount, item_count }) => ({ status, amount, item_count }))).toEqual(
      expected.map(({ data }) => ({ status: (data as { newStatus: string }).newStatus, amount: '13', item_count: 2 })),
    )
  })
})
