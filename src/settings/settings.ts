import { checkOptions, type Duration, describe, milliseconds, nearest, WaybillError } from '../core/index.ts'
import { SETTINGS, type Setting } from './table.ts'

/** What the environment says of a relay: options for `new Relay({ …, ...settings.relay })`. */
export interface RelaySettings {
  enabled?: boolean
  poll?: Duration
  batch?: number
  lease?: Duration
  retry?: { attempts?: number }
}

/** The same for `new Cleaner({ …, ...settings.cleaner })`. */
export interface CleanerSettings {
  enabled?: boolean
  retention?: Duration
}

/** Options by worker. What the environment does not say is absent, so that the worker's own default counts. */
export interface Settings {
  readonly relay: RelaySettings
  readonly cleaner: CleanerSettings
}

/** Which variables are read. */
export interface SettingsOptions {
  /** What names begin with. Default `OUTBOX`; for a module of its own `ORG_OUTBOX`: `ORG_OUTBOX_RELAY_ENABLED`. */
  prefix?: string
}

/**
 * The options that an environment asks for: `new Relay({ from, to, ...settingsFrom(process.env).relay })`. Nothing else
 * in this library reads the environment. One error names all that is wrong: name, value and what is allowed. A variable
 * of the prefix that is none of ours is refused too, with the nearest name: it would be a setting nobody heeds.
 */
export function settingsFrom(
  environment: Readonly<Record<string, string | undefined>>,
  options: SettingsOptions = {},
): Settings {
  checkOptions('settingsFrom', options, { prefix: true })
  const prefix = prefixOf(options.prefix ?? 'OUTBOX')
  const settings: Record<Setting['of'], Record<string, unknown>> = { relay: {}, cleaner: {} }
  const problems = unknownNames(environment, prefix)
  for (const setting of SETTINGS) {
    const name = `${prefix}_${setting.name}`
    const given = environment[name]?.trim()
    if (given === undefined || given === '') continue
    const read = readValue(setting, given)
    if ('allowed' in read) problems.push(`${name}=${describe(given)} is not allowed; give ${read.allowed}`)
    else assign(settings[setting.of], setting.option, read.value)
  }
  if (problems.length === 0) return settings as unknown as Settings
  throw new WaybillError('INVALID_SETTING', problems.join('. '))
}

function prefixOf(prefix: string): string {
  if (typeof prefix === 'string' && /^[A-Z][A-Z0-9_]*[A-Z0-9]$/.test(prefix)) return prefix
  const text = `settingsFrom: prefix: ${describe(prefix)} is not allowed; give capitals, digits and _, such as ORG_OUTBOX`
  throw new WaybillError('INVALID_OPTION', text)
}

type Read = { readonly value: boolean | number } | { readonly allowed: string }

/** Numbers may be written as 1_000; switches in any case; durations as we and as Go write them. */
function readValue({ kind, min = kind === 'duration' ? 0 : 1, max }: Setting, given: string): Read {
  if (kind === 'switch') {
    const value = SWITCHES.get(given.toLowerCase())
    return value === undefined ? { allowed: 'true or false' } : { value }
  }
  if (kind === 'count') {
    const value = /^\d+(?:_\d+)*$/.test(given) ? Number(given.replaceAll('_', '')) : Number.NaN
    if (Number.isSafeInteger(value) && value >= min && value <= (max ?? Number.MAX_SAFE_INTEGER)) return { value }
    return { allowed: `a whole number of at least ${min}${max === undefined ? '' : ` and at most ${max}`}` }
  }
  const value = durationOf(given)
  if (value !== undefined && value >= min && value <= (max ?? LONGEST)) return { value }
  const least = min > 0 ? `at least ${min} ms and ` : ''
  const most = max === undefined ? '100 years' : `${max / DAY} days`
  return {
    allowed: `a duration of ${least}at most ${most}, a number with its unit, such as 500ms, 30s, 1m30s or 168h`,
  }
}

/** A map: names that every object has are no switches. */
const SWITCHES: ReadonlyMap<string, boolean> = new Map([
  ['true', true],
  ['1', true],
  ['false', false],
  ['0', false],
])

const DAY = 86_400_000
/** A hundred years: what is longer was not meant, and no clock and no store can count it. */
const LONGEST = 36_500 * DAY

/** `undefined`: none. A bare number has no unit, and nobody knows whether seconds were meant. */
function durationOf(given: string): number | undefined {
  try {
    return milliseconds(given as Duration)
  } catch {
    return undefined
  }
}

function assign(into: Record<string, unknown>, option: string, value: unknown): void {
  const [first, second] = option.split('.')
  into[first!] = second === undefined ? value : { [second]: value }
}

/**
 * Names that begin like ours and are none, and those that are misspelled before that. What belongs to other programs, or to a
 * module with a prefix of its own, begins otherwise.
 */
function unknownNames(environment: Readonly<Record<string, string | undefined>>, prefix: string): string[] {
  const names = SETTINGS.map(({ name }) => `${prefix}_${name}`)
  const begins = [`${prefix}_RELAY_`, `${prefix}_CLEANER_`]
  return Object.keys(environment).flatMap((name) => {
    // Windows finds a name in any case.
    if (names.includes(name) || isRead(environment, name, names)) return []
    const ours = begins.some((begin) => name.startsWith(begin))
    const near = ours ? nearest(name, names) : misspelled(name, prefix, names)
    if (!ours && near === undefined) return []
    return [`${name} is no setting${near === undefined ? '' : `; did you mean ${near}?`}`]
  })
}

function isRead(environment: Readonly<Record<string, string | undefined>>, name: string, names: readonly string[]) {
  const upper = name.toUpperCase()
  return names.includes(upper) && environment[upper] !== undefined && environment[upper] === environment[name]
}

/** One or two letters wrong: `OUTBOX_REALY_ENABLED`, `outbox_relay_enabled`. */
function misspelled(name: string, prefix: string, names: readonly string[]): string | undefined {
  const upper = name.toUpperCase()
  if (!upper.startsWith(`${prefix}_`)) return undefined
  // Of a module of its own: `OUTBOX_B_RELAY_ENABLED`.
  if (!names.includes(upper) && SETTINGS.some((one) => upper.endsWith(`_${one.name}`))) return undefined
  return nearest(name, names, 2)
}
