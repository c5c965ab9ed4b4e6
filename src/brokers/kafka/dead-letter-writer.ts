import { telemetry } from '../../core/index.ts'
import { isOwnFault, type KafkaHeaders, type OutgoingRecord } from '../../drivers/kafka/kafka.ts'
import { textOf } from './encoding.ts'
import type { GroupSettings } from './member.ts'
import type { BadRecord } from './partition.ts'

/** How the headers begin that a dead letter has in addition to those of its record. */
export const OWN = 'waybill-'
/** Of a record without a value: a dead letter needs one, since its topic may be compacted. */
export const NULL = 'waybill-null'
/** Of a dead letter that could not hold its record: the rest is in the original topic, for as long as it is retained. */
export const PARTIAL = 'waybill-partial'

export const NOTHING = Buffer.alloc(0)

/** The longest reason, in characters, of a dead letter with nothing but its place: that should fit everywhere. */
const SHORT = 500

/**
 * Writes dead letters, and calls `written` for each that is stored. One that its topic refuses is sent alone, then without
 * its value, then with its place only: a record that cannot become one would be redelivered for ever, and nothing could
 * be committed past it.
 */
export async function writeDeadLetters(
  settings: GroupSettings,
  all: readonly BadRecord[],
  written: (at: number) => void,
): Promise<void> {
  if (all.length > 1) {
    try {
      await settings.sender.send(all.map((bad) => letterOf(settings, bad)))
      all.forEach((_, at) => {
        written(at)
      })
      return
    } catch (error) {
      if (!isOwnFault(error)) throw error
    }
  }
  for (const [at, bad] of all.entries()) {
    await writeDeadLetter(settings, bad)
    written(at)
  }
}

async function writeDeadLetter(settings: GroupSettings, bad: BadRecord): Promise<void> {
  const { sender, where } = settings
  const whole = letterOf(settings, bad)
  try {
    return await sender.send([whole])
  } catch (error) {
    if (!isOwnFault(error)) throw error
    try {
      await sender.send([withoutValue(whole)])
    } catch (again) {
      if (!isOwnFault(again)) throw again
      await sender.send([placeOnly(whole)])
    }
    const text = `the dead letter of ${placeOf(bad)} was refused by topic ${whole.topic}, and is there without its value: ${error.message}. Raise max.message.bytes of that topic`
    telemetry.warning.publish({ where, message: text })
  }
}

export function placeOf({ from, record }: BadRecord): string {
  return `${from.topic}/${from.partition}/${record.offset}`
}

/** The record as it was, with the ownHeaders of it in headers. */
function letterOf({ group, letters }: GroupSettings, bad: BadRecord): OutgoingRecord {
  const { from, record, reason, attempts } = bad
  const ownHeaders = {
    [`${OWN}reason`]: reason,
    [`${OWN}attempts`]: String(attempts),
    [`${OWN}topic`]: from.topic,
    [`${OWN}partition`]: String(from.partition),
    [`${OWN}offset`]: String(record.offset),
    [`${OWN}group`]: group,
    ...(record.value === null ? { [NULL]: 'true' } : {}),
  }
  return {
    topic: letters(from.topic),
    key: record.key,
    value: record.value ?? NOTHING,
    headers: { ...withoutReason(record.headers), ...ownHeaders },
  }
}

function withoutValue({ topic, key, headers }: OutgoingRecord): OutgoingRecord {
  return { topic, key, value: NOTHING, headers: { ...headers, [PARTIAL]: 'true' } }
}

/** A compacted topic wants a key, and one of the record's may be too long. */
function placeOnly({ topic, headers }: OutgoingRecord): OutgoingRecord {
  const said = (name: string) => textOf(headers[OWN + name])
  const key = Buffer.from(`${said('topic')}/${said('partition')}/${said('offset')}/${said('group')}`)
  const ownHeaders = Object.entries(headers).filter(([name]) => name.startsWith(OWN))
  const short = {
    ...Object.fromEntries(ownHeaders),
    [`${OWN}reason`]: said('reason').slice(0, SHORT),
    [PARTIAL]: 'true',
  }
  return { topic, key, value: NOTHING, headers: short }
}

/** Headers as others wrote them. Nulls become empty: some clients cannot write them. */
export function withoutReason(headers: KafkaHeaders): KafkaHeaders {
  const entries = Object.entries(headers).filter(([name]) => !name.startsWith(OWN))
  return Object.fromEntries(
    entries.map(([name, value]) => [name, Array.isArray(value) ? value.map((one) => one ?? '') : (value ?? '')]),
  )
}
