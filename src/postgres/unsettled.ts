import { idOf, numberOf, type Row } from './row.ts'

/**
 * What was handed out and is not settled yet. It is known by event id: two rows can have the same number (after a restore,
 * setval or TRUNCATE … RESTART IDENTITY). A scan leaves out their numbers, as ranges; a row that shares one is found when
 * the other is settled.
 *
 * Looked up by number first: hashing an id costs a relay a twentieth of its time.
 */
export class UnsettledRows {
  readonly #ids = new Map<number, string>()
  /** Those whose number was taken already, by id. */
  readonly #sameNumber = new Map<string, number>()

  has(row: Row): boolean {
    const id = this.#ids.get(numberOf(row))
    return id !== undefined && (id === idOf(row) || this.#sameNumber.has(idOf(row)))
  }

  add(eventId: string, number: number): void {
    const id = this.#ids.get(number)
    if (id === undefined || id === eventId) this.#ids.set(number, eventId)
    else this.#sameNumber.set(eventId, number)
  }

  delete(eventId: string, number: number): void {
    if (this.#sameNumber.delete(eventId) || this.#ids.get(number) !== eventId) return
    this.#ids.delete(number)
    for (const [id, same] of this.#sameNumber) {
      if (same !== number) continue
      this.#sameNumber.delete(id)
      this.#ids.set(number, id)
      return
    }
  }

  /** Their numbers, and those of `more`. */
  ranges(more: readonly Row[] = []): Ranges {
    const numbers = [...this.#ids.keys()]
    for (const row of more) numbers.push(numberOf(row))
    return rangesOf(numbers)
  }
}

export interface Ranges {
  /** Of an int8multirange. */
  readonly text: string
  /** Infinity where there is none. */
  readonly lowest: number
  readonly longest: { readonly from: number; readonly to: number } | undefined
}

/** Mostly they were read together and are settled in that order: so there are a few ranges for thousands of numbers. */
export function rangesOf(numbers: number[]): Ranges {
  numbers.sort((a, b) => a - b)
  const ranges: string[] = []
  let longest: { from: number; to: number } | undefined
  for (let i = 0; i < numbers.length; ) {
    const from = numbers[i]!
    let to = from
    for (i++; i < numbers.length && numbers[i]! <= to + 1; i++) to = numbers[i]!
    ranges.push(`[${from},${to}]`)
    if (longest === undefined || to - from > longest.to - longest.from) longest = { from, to }
  }
  return { text: `{${ranges.join(',')}}`, lowest: numbers[0] ?? Number.POSITIVE_INFINITY, longest }
}
