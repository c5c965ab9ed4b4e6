import { describe, type EventKey, nearest, patternOf, WaybillError } from '../core/index.ts'

/** Topics, or patterns of them (`order.*`, `order.#`), and the destinations that each goes to. */
export type RouteTable = Readonly<Record<string, string | readonly string[]>>

/** Topics change seldom, unless somebody makes them of ids. */
const MOST_REMEMBERED = 10_000

/** To which destinations a topic goes: those of every route that fits, each once. */
export class Routes {
  readonly #routes: readonly { readonly fits: (topic: string) => boolean; readonly to: readonly string[] }[]
  readonly #known = new Map<string, readonly string[]>()

  constructor(where: string, table: RouteTable, destinations: readonly string[]) {
    if (typeof table !== 'object' || table === null || Array.isArray(table)) {
      const text = `${where}: routes: ${describe(table)} is no table of topics; give { 'order.*': 'warehouse' }`
      throw new WaybillError('INVALID_OPTION', text)
    }
    this.#routes = Object.entries(table).map(([pattern, given]) => {
      const to = typeof given === 'string' ? [given] : given
      if (!Array.isArray(to) || to.length === 0) {
        const text = `${where}: routes: ${describe(pattern)} leads nowhere; give the name of a destination, or several`
        throw new WaybillError('INVALID_OPTION', text)
      }
      for (const name of to) if (!destinations.includes(name)) throw unknown(where, pattern, name, destinations)
      return { fits: patternOf(`${where}: routes`, pattern), to }
    })
    const unused = destinations.find((name) => !this.#routes.some(({ to }) => to.includes(name)))
    if (unused !== undefined) {
      const text = `${where}: no route leads to ${describe(unused)}; what waits in its branch is sent, but nothing ever joins it`
      throw new WaybillError('INVALID_OPTION', text)
    }
  }

  /** Empty where no route fits. */
  of(topic: string): readonly string[] {
    const known = this.#known.get(topic)
    if (known !== undefined) return known
    const found = new Set(this.#routes.filter(({ fits }) => fits(topic)).flatMap(({ to }) => to))
    if (this.#known.size >= MOST_REMEMBERED) this.#known.clear()
    const destinations = [...found]
    this.#known.set(topic, destinations)
    return destinations
  }

  /** Throws for the first of these topics that has no route: better now than with its first event. */
  check(where: string, topics: readonly (string | EventKey)[]): void {
    for (const given of topics) {
      const topic = typeof given === 'string' ? given : given.type
      if (this.of(topic).length === 0) {
        throw new WaybillError('NO_ROUTE', `${where}: no route fits the topic ${describe(topic)}; add one for it`)
      }
    }
  }
}

function unknown(where: string, pattern: string, name: unknown, destinations: readonly string[]): WaybillError {
  const near = nearest(String(name), destinations)
  const hint = near === undefined ? '.' : `; did you mean ${describe(near)}?`
  return new WaybillError(
    'INVALID_OPTION',
    `${where}: routes: ${describe(pattern)} leads to ${describe(name)}, which is no destination${hint} Known: ${destinations.join(', ')}`,
  )
}
