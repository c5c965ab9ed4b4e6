/** The statements of a text: comments, quotes and dollar quotes may hold semicolons. Some drivers take only one at a time. */
export function statements(text: string): string[] {
  const found: string[] = []
  let from = 0
  for (let at = 0; at < text.length; ) {
    if (text[at] === ';') {
      found.push(text.slice(from, at))
      from = ++at
    } else at = behind(text, at)
  }
  found.push(text.slice(from))
  return found.map(withoutComments).filter((statement) => statement !== '')
}

/** Where what begins at `at` has ended. */
function behind(text: string, at: number): number {
  if (text.startsWith('--', at)) return end(text, '\n', at)
  const quote = text[at]
  if (quote === "'" || quote === '"') return end(text, quote, at + 1)
  const tag = quote === '$' ? /^\$\w*\$/.exec(text.slice(at, at + 64))?.[0] : undefined
  return tag === undefined ? at + 1 : end(text, tag, at + tag.length)
}

function end(text: string, mark: string, from: number): number {
  const at = text.indexOf(mark, from)
  return at < 0 ? text.length : at + mark.length
}

/** A comment before a statement is for the reader of the file. */
function withoutComments(statement: string): string {
  return statement.replace(/^(?:\s*--.*(?:\n|$))+/, '').trim()
}
