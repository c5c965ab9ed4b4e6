import { type EventKey, type Message, WaybillError } from '../core/index.ts'
import type { Handle } from './middleware.ts'

/** One registered handler and the event version it understands. */
export interface Entry {
  readonly event: EventKey
  readonly handle: Handle
}

/**
 * Handlers by exact type, and within a type by version: one for the definition itself, which gets every version
 * upcast to the newest, or one for each version of its own.
 */
export class Handlers {
  readonly #types = new Map<string, Versions>()

  add(entry: Entry): void {
    const { type, target, exact } = entry.event
    const versions = this.#types.get(type) ?? { only: entry, all: new Map<number, Entry>() }
    this.#types.set(type, versions)
    if (versions.all.has(target)) {
      const which = exact ? ` (version ${target})` : ''
      throw new WaybillError(
        'DUPLICATE_HANDLER',
        `a handler for "${type}"${which} is registered already; one router handles a type once, use another router for a second handler`,
      )
    }
    versions.all.set(target, entry)
    if (versions.all.size > 1) versions.only = undefined
  }

  get types(): string[] {
    return [...this.#types.keys()]
  }

  has(type: string): boolean {
    return this.#types.has(type)
  }

  /** The handler of exactly this version, or else of the nearest newer one, or else of the newest there is. */
  find(message: Message): Entry | undefined {
    const versions = this.#types.get(message.type)
    return versions === undefined ? undefined : (versions.only ?? pick(versions.all, message.version))
  }
}

interface Versions {
  /** The one there is, when there is only one. */
  only: Entry | undefined
  readonly all: Map<number, Entry>
}

function pick(versions: Map<number, Entry>, version: number): Entry | undefined {
  const exact = versions.get(version)
  if (exact !== undefined) return exact
  const known = [...versions.keys()].sort((a, b) => a - b)
  const newer = known.find((candidate) => candidate > version) ?? known.at(-1)
  return newer === undefined ? undefined : versions.get(newer)
}
