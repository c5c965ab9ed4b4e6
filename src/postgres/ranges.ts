/**
 * Whole numbers as ranges in order, because they come and go in runs: what is in hand was mostly read in one go and is
 * settled in that order. So there are a few ranges where a set would hold thousands of numbers, and nothing is sorted.
 */
export class Ranges {
  readonly #from: number[]
  readonly #to: number[]

  constructor(other?: Ranges) {
    this.#from = other === undefined ? [] : [...other.#from]
    this.#to = other === undefined ? [] : [...other.#to]
  }

  /** Infinity where there is none. */
  get lowest(): number {
    return this.#from[0] ?? Number.POSITIVE_INFINITY
  }

  /** The longest of them, by its ends. */
  get longest(): { readonly from: number; readonly to: number } | undefined {
    let longest: { from: number; to: number } | undefined
    for (const [i, from] of this.#from.entries()) {
      const to = this.#to[i]!
      if (longest === undefined || to - from > longest.to - longest.from) longest = { from, to }
    }
    return longest
  }

  has(number: number): boolean {
    return number <= (this.#to[this.#at(number)] ?? Number.NEGATIVE_INFINITY)
  }

  add(number: number): void {
    const at = this.#at(number)
    if (number <= (this.#to[at] ?? Number.NEGATIVE_INFINITY)) return
    const joinsBefore = this.#to[at] === number - 1
    const joinsNext = this.#from[at + 1] === number + 1
    if (joinsBefore && joinsNext) {
      this.#to[at] = this.#to[at + 1]!
      this.#remove(at + 1)
    } else if (joinsBefore) this.#to[at] = number
    else if (joinsNext) this.#from[at + 1] = number
    else {
      this.#from.splice(at + 1, 0, number)
      this.#to.splice(at + 1, 0, number)
    }
  }

  delete(number: number): void {
    const at = this.#at(number)
    const from = this.#from[at]
    const to = this.#to[at]
    if (from === undefined || to === undefined || number > to) return
    if (from === to) this.#remove(at)
    else if (number === from) this.#from[at] = number + 1
    else if (number === to) this.#to[at] = number - 1
    else {
      this.#to[at] = number - 1
      this.#from.splice(at + 1, 0, number + 1)
      this.#to.splice(at + 1, 0, to)
    }
  }

  /** Text of an int8multirange. */
  toString(): string {
    return `{${this.#from.map((from, i) => `[${from},${this.#to[i]}]`).join(',')}}`
  }

  /** The last range that begins at or before `number`; -1 if none does. */
  #at(number: number): number {
    let low = 0
    let high = this.#from.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.#from[middle]! <= number) low = middle + 1
      else high = middle
    }
    return low - 1
  }

  #remove(at: number): void {
    this.#from.splice(at, 1)
    this.#to.splice(at, 1)
  }
}
