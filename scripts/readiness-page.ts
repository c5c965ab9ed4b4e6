/** What the tests said about each line, and the page that tells it. */
import type { Chapter, Shown } from './readiness-map.ts'

/** As far as it is read: vitest's JSON report. */
export interface Report {
  readonly testResults: readonly {
    readonly name: string
    readonly assertionResults: readonly {
      readonly ancestorTitles: readonly string[]
      readonly title: string
      readonly status: string
      readonly duration?: number | null
    }[]
  }[]
}

export interface Run {
  readonly report: Report
  /** Milliseconds. */
  readonly took: number | undefined
  readonly servers: readonly string[]
}

export type Result = 'passed' | 'failed' | 'not run'

export interface Judged {
  readonly title: string
  readonly lines: readonly {
    readonly id: string
    readonly text: string
    readonly result: Result
    readonly took: number
    readonly tests: readonly (Shown & { readonly result: Result; readonly count: number })[]
  }[]
}

export function judge(chapters: readonly Chapter[], report: Report): Judged[] {
  const ran = report.testResults.flatMap(({ name, assertionResults }) =>
    assertionResults.map(({ ancestorTitles, title, status, duration }) => ({
      file: name.replaceAll('\\', '/'),
      name: [...ancestorTitles, title].join(' > '),
      status,
      took: duration ?? 0,
    })),
  )
  const look = ({ file, name }: Shown) => {
    const found = ran.filter((test) => test.file.endsWith(`/${file}`) && test.name.includes(name))
    const failed = found.some(({ status }) => status === 'failed')
    const passed = found.filter(({ status }) => status === 'passed')
    const result: Result = failed ? 'failed' : passed.length === 0 ? 'not run' : 'passed'
    return { file, name, result, count: passed.length, took: found.reduce((sum, { took }) => sum + took, 0) }
  }
  return chapters.map(({ title, lines }) => ({
    title,
    lines: lines.map(({ id, text, tests }) => {
      const seen = tests.map(look)
      return { id, text, result: whole(seen), took: seen.reduce((sum, { took }) => sum + took, 0), tests: seen }
    }),
  }))
}

function whole(tests: readonly { readonly result: Result }[]): Result {
  if (tests.some(({ result }) => result === 'failed')) return 'failed'
  return tests.length === 0 || tests.some(({ result }) => result === 'not run') ? 'not run' : 'passed'
}

export interface About {
  readonly node: string
  readonly pglite: string
  readonly date: string
}

export function page(judged: readonly Judged[], { report, took, servers }: Run, about: About): string {
  const lines = judged.flatMap((chapter) => chapter.lines)
  const count = (result: Result) => lines.filter((line) => line.result === result).length
  const tests = report.testResults.flatMap(({ assertionResults }) => assertionResults)
  const failed = tests.filter(({ status }) => status === 'failed').length
  const passed = tests.filter(({ status }) => status === 'passed').length
  const sum = `${count('passed')} lines shown, ${count('failed')} failed, ${count('not run')} not run`
  return `# Readiness

Which test shows which line, written by \`npm run readiness\`. Do not edit: change
[\`scripts/readiness-map.ts\`](../scripts/readiness-map.ts) and run it again.

| | |
|---|---|
| date | ${about.date} UTC |
| commands | \`npm ci\`, \`npm run readiness\` |
| lines | ${sum} |
| tests | ${passed} passed, ${failed} failed${took === undefined ? '' : `, in ${seconds(took)}, servers included`} |
| versions | Node ${about.node.slice(1)}, PGlite ${about.pglite}${servers.map((server) => `, ${server}`).join('')} |

The time of a line is the sum of its tests; a test may show several lines. \`×3\` says that it ran three times, on
other servers, drivers or settings. What else a commit must pass (\`npm run check\`, the whole of \`npm test\`, the long
fault tests) is in \`.ci/run\`.
${judged.map(chapterOf).join('')}`
}

function chapterOf({ title, lines }: Judged): string {
  const rows = lines.map(({ id, text, result, took, tests }) => {
    const shown = tests.map(({ file, name, count, result }) => {
      const times = count > 1 ? ` ×${count}` : ''
      const mark = result === 'passed' ? '' : ` **${result}**`
      return `[${file.replace(/^test\/|\.test\.ts$/g, '')}](../${file}): ${name.replaceAll('|', '\\|')}${times}${mark}`
    })
    return `| ${id} | ${text} | ${shown.join('<br>')} | ${seconds(took)} | ${result === 'passed' ? 'passed' : `**${result}**`} |`
  })
  return `\n## ${title}\n\n| line | what must hold | shown by | time | result |\n|---|---|---|---|---|\n${rows.join('\n')}\n`
}

function seconds(ms: number): string {
  return ms < 950 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(1)} s`
}
