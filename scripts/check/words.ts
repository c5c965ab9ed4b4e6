import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

/**
 * An absolute path below someone's home or work folder: true on one machine only. What stands before the slash
 * decides: after a word, a dot, a bracket or a variable it is part of a longer path or of a web address.
 */
const machinePath = /(?<![\w.~$%@:)}\]/*-])\/(?:work|root|home|Users)\/[\w.-]+/g

/** Texts that look like one and are not. */
const allowed: { path: string; text: string; why: string }[] = []

export function wordProblems({ path, text }: TextFile): string[] {
  return text.split('\n').flatMap((line, index) =>
    [...line.matchAll(machinePath)]
      .map(([found]) => found)
      .filter((found) => !allowed.some((exception) => exception.path === path && exception.text === found))
      .map((found) => `${path}:${index + 1}  ${found} is a path of one machine`),
  )
}

export async function words(): Promise<Findings> {
  return { problems: readText(await trackedFiles()).flatMap(wordProblems) }
}
