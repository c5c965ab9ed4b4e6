import type { Message } from '../core/index.ts'
import type { Delivery, Publisher, Session, Source } from '../flow/index.ts'
import { crashPoint } from './crash.ts'

/** The points of `crashingPublisher(publisher, prefix)`. */
export function publisherPoints<Prefix extends string>(prefix: Prefix) {
  return [`${prefix}.before-publish`, `${prefix}.after-publish`] as const
}

/** The publisher, with a crash point before it publishes, and one when it has but nobody knows yet. */
export function crashingPublisher(publisher: Publisher, prefix: string): Publisher {
  const [before, after] = publisherPoints(prefix)
  return {
    name: publisher.name,
    features: publisher.features,
    async publish(messages, signal) {
      crashPoint(before)
      const outcomes = await publisher.publish(messages, signal)
      crashPoint(after)
      return outcomes
    },
    ...(publisher.start && { start: () => publisher.start!() }),
    ...(publisher.close && { close: () => publisher.close!() }),
  }
}

/** The points of `crashingSource(source, prefix)`. */
export function sourcePoints<Prefix extends string>(prefix: Prefix) {
  return [`${prefix}.after-take`, `${prefix}.before-settle`, `${prefix}.after-settle`] as const
}

/**
 * The source, with a crash point when something was taken, when it is about to be settled, and when it has been but
 * nobody knows yet.
 */
export function crashingSource<D extends Delivery<Message>>(source: Source<D>, prefix: string): Source<D> {
  const [taken, before, after] = sourcePoints(prefix)
  const wrap = (session: Session<D>): Session<D> =>
    new Proxy(session, {
      get(target, property) {
        if (property === 'take') {
          return async (...demand: Parameters<Session<D>['take']>) => {
            const deliveries = await target.take(...demand)
            if (deliveries.length > 0) crashPoint(taken)
            return deliveries
          }
        }
        if (property === 'settle') {
          return async (...batch: Parameters<Session<D>['settle']>) => {
            crashPoint(before)
            const stale = await target.settle(...batch)
            crashPoint(after)
            return stale
          }
        }
        const value: unknown = Reflect.get(target, property)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
  return {
    name: source.name,
    features: source.features,
    async open(signal) {
      const session = await source.open(signal)
      return session === undefined ? undefined : wrap(session)
    },
  }
}
