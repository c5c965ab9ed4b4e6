import { replyCode } from '../../drivers/amqp-errors.ts'
import type { QueuePlan } from './setup.ts'

/** What a queue was made with, as far as the server can be brought to say it. */
export interface QueueShape {
  readonly durable: boolean
  readonly arguments: Readonly<Record<string, unknown>>
}

/** Only quorum queues have these; the server refuses them for others. */
const QUORUM_ONLY = ['x-delivery-limit', 'x-dead-letter-strategy']

/**
 * What a queue was made with that somebody else has declared. AMQP has no question for that; but a declaration that
 * differs is refused with the name and the value of one argument that does. So `declare` is tried, each time with what
 * was said, until the server agrees. `undefined`: it does not say, since this user may not declare, or for another reason.
 */
export async function shapeOf(
  declare: (shape: QueueShape) => Promise<unknown>,
  wanted: Readonly<Record<string, unknown>>,
): Promise<QueueShape | undefined> {
  const args: Record<string, unknown> = { ...wanted }
  let durable = true
  const seen = new Set<string>()
  for (;;) {
    try {
      await declare({ durable, arguments: { ...args } })
      return { durable, arguments: args }
    } catch (error) {
      // Nobody has answered: the next session asks again.
      if (replyCode(error) === undefined) throw error
      const found = differenceIn(error)
      // The same again: it was not understood.
      if (found === undefined || seen.has(found.name)) return undefined
      seen.add(found.name)
      if (found.name === 'durable') durable = found.value === 'true'
      else if (found.value === undefined) delete args[found.name]
      else args[found.name] = typeof args[found.name] === 'number' ? Number(found.value) : found.value
      if (found.name === 'x-queue-type' && found.value !== 'quorum') for (const name of QUORUM_ONLY) delete args[name]
    }
  }
}

/** The argument that differs, and what it is: `undefined` where the queue has none of that name. */
export function differenceIn(error: unknown): { name: string; value: unknown } | undefined {
  const text = (error instanceof Error ? error.message : String(error)).slice(0, 2000)
  const found = /inequivalent arg '([^']+)' for queue .* but current is (.+?)"?$/s.exec(text)
  if (found === null) return undefined
  const [, name, is] = found as unknown as [string, string, string]
  const typed = /^the value '(.*)' of type '(\w+)'$/s.exec(is)
  const value = typed?.[1] ?? /^'(.*)'$/s.exec(is)?.[1]
  if (value === undefined) return is === 'none' ? { name, value: undefined } : undefined
  return { name, value: typed !== null && typed[2] !== 'longstr' ? Number(value) : value }
}

/** What can lose or stall messages in the queue that is read. A policy may set the same, which nobody can see here. */
export function dangersOfQueue({ name }: QueuePlan, { durable, arguments: args }: QueueShape): string[] {
  const { 'x-queue-type': type = 'classic' } = args
  const dangers: string[] = []
  const queue = `queue ${JSON.stringify(name)}`
  if (!durable) dangers.push(`${queue} is not durable: what is in it is lost when the server ends`)
  if (type !== 'quorum') {
    dangers.push(
      `${queue} is a ${String(type)} queue, which counts no deliveries: a message that kills its consumers comes again for ever; make it a quorum queue with x-delivery-limit`,
    )
  } else if (args['x-delivery-limit'] === undefined) {
    dangers.push(
      `${queue} has no x-delivery-limit: before RabbitMQ 4, a message that kills its consumers comes again for ever`,
    )
  }
  if (args['x-dead-letter-exchange'] === undefined) {
    dangers.push(
      `${queue} has no x-dead-letter-exchange: what the server gives up is dropped, unless a policy names one`,
    )
  }
  return [...dangers, ...dangersOfLimits(queue, args, 'handled or not')]
}

/** The same for the queue of the dead letters, which are to stay until a person has looked at them. */
export function dangersOfDeadQueue(name: string, { durable, arguments: args }: QueueShape): string[] {
  const queue = `queue ${JSON.stringify(name)}`
  const dangers: string[] = []
  if (!durable) dangers.push(`${queue} is not durable: dead letters are lost when the server ends`)
  if (args['x-queue-type'] === 'quorum' && args['x-delivery-limit'] === undefined) {
    dangers.push(
      `${queue} has no x-delivery-limit: RabbitMQ 4 drops a dead letter that was looked at 20 times; make it with a limit of 1000000000`,
    )
  }
  return [...dangers, ...dangersOfLimits(queue, args, 'looked at or not')]
}

/** What removes messages by itself. */
function dangersOfLimits(queue: string, args: QueueShape['arguments'], regardless: string): string[] {
  const { 'x-message-ttl': ttl, 'x-overflow': overflow = 'drop-head' } = args
  const dangers: string[] = []
  if (LIMITS.some((limit) => args[limit] !== undefined) && overflow === 'drop-head') {
    dangers.push(
      `${queue} drops its oldest messages when it is full, ${regardless}; make it with x-overflow "reject-publish"`,
    )
  }
  if (ttl !== undefined) dangers.push(`${queue} has x-message-ttl: messages are removed after ${ttl} ms, ${regardless}`)
  return [...dangers, ...dangersOfExpiry(queue, args)]
}

const LIMITS = ['x-max-length', 'x-max-length-bytes']

function dangersOfExpiry(queue: string, { 'x-expires': expires }: QueueShape['arguments']): string[] {
  if (expires === undefined) return []
  return [`${queue} has x-expires: it is deleted, with all that is in it, when nobody has read it for ${expires} ms`]
}

/** The same for a queue in which retries wait: when their time is over they must come back. */
export function dangersOfRetryQueue(plan: QueuePlan, name: string, { durable, arguments: args }: QueueShape): string[] {
  const dangers: string[] = []
  const queue = `queue ${JSON.stringify(name)}`
  if (!durable) dangers.push(`${queue} is not durable: retries that wait in it are lost when the server ends`)
  const to = args['x-dead-letter-exchange']
  if (to !== '' || args['x-dead-letter-routing-key'] !== plan.name) {
    const is = to === undefined ? 'has no x-dead-letter-exchange' : 'dead-letters elsewhere'
    dangers.push(
      `${queue} ${is}: retries do not come back from it, they are lost; make it with x-dead-letter-exchange "" and x-dead-letter-routing-key ${JSON.stringify(plan.name)}, unless a policy does so`,
    )
  }
  return [...dangers, ...dangersOfExpiry(queue, args)]
}
