/** What this machine's own apt sources say about where its distribution lives; no host is written down here. */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'

export interface Source {
  uri: string
  suite: string
  components: string
  signedBy: string
}

export async function codename(): Promise<string> {
  const text = await readFile('/etc/os-release', 'utf8').catch(() => '')
  return /^VERSION_CODENAME=(\S+)/m.exec(text)?.[1] ?? ''
}

/** The distribution's own entries only: a third party's repository may be unreachable and is not needed. */
export async function distributionSources(folder = '/etc/apt'): Promise<Source[]> {
  const parts = await readdir(join(folder, 'sources.list.d')).catch(() => [])
  const files = [join(folder, 'sources.list'), ...parts.map((name) => join(folder, 'sources.list.d', name))]
  const name = await codename()
  const found: Source[] = []
  for (const file of files) {
    const text = await readFile(file, 'utf8').catch(() => '')
    found.push(...(file.endsWith('.sources') ? stanzas(text) : lines(text)))
  }
  return found.filter((source) => name !== '' && (source.suite === name || source.suite.startsWith(`${name}-`)))
}

export function lineOf({ uri, suite, components, signedBy }: Source): string {
  return `deb ${signedBy ? `[signed-by=${signedBy}] ` : ''}${uri} ${suite} ${components}`
}

/** `deb [signed-by=…] uri suite component…` */
function lines(text: string): Source[] {
  return text.split('\n').flatMap((line) => {
    const match = /^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.+)$/.exec(line.replace(/#.*/, ''))
    if (!match) return []
    const signedBy = /signed-by=(\S+)/.exec(match[1] ?? '')?.[1] ?? ''
    return [{ uri: match[2]!, suite: match[3]!, components: match[4]!.trim(), signedBy }]
  })
}

/** The newer form: paragraphs of `Field: value`, where one paragraph may name several suites. */
function stanzas(text: string): Source[] {
  const withoutComments = text.replace(/^#.*\n?/gm, '')
  return withoutComments.split(/\n\s*\n/).flatMap((stanza) => {
    const field = (name: string) => new RegExp(`^${name}:[ \t]*(.*)$`, 'mi').exec(stanza)?.[1]?.trim() ?? ''
    if (!field('Types').split(/\s+/).includes('deb') || field('Enabled').toLowerCase() === 'no') return []
    return field('Suites')
      .split(/\s+/)
      .flatMap((suite) =>
        field('URIs')
          .split(/\s+/)
          .map((uri) => ({ uri, suite, components: field('Components'), signedBy: field('Signed-By') })),
      )
  })
}
