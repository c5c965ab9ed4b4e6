/**
 * The Standard Schema interface (standardschema.dev), written down rather than imported: Zod, Valibot, ArkType and
 * others implement it, and none of them is needed here.
 */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

export interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** What a schema takes. */
export type SchemaInput<Schema extends StandardSchema> = NonNullable<Schema['~standard']['types']>['input']
/** What a schema gives. */
export type SchemaOutput<Schema extends StandardSchema> = NonNullable<Schema['~standard']['types']>['output']

export function isSchema(value: unknown): value is StandardSchema {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  const standard = (value as Partial<StandardSchema>)['~standard']
  return typeof standard === 'object' && typeof standard?.validate === 'function'
}

const MOST_ISSUES = 10
const LONGEST_MESSAGE = 2000

/** What is wrong with `value`, as paths and the schema's messages; values a message repeats are cut out of it. */
export function issueList(issues: readonly SchemaIssue[], value: unknown): string {
  const lines = issues.slice(0, MOST_ISSUES).map((issue) => {
    const path = (issue.path ?? []).map((part) => (typeof part === 'object' ? part.key : part))
    const message = withoutValues(issue.message, at(value, path))
    return path.length === 0 ? message : `${path.map(String).join('.')}: ${message}`
  })
  if (issues.length > MOST_ISSUES) lines.push(`and ${issues.length - MOST_ISSUES} more`)
  return lines.join('; ')
}

function at(value: unknown, path: readonly PropertyKey[]): unknown {
  let found = value
  for (const key of path) {
    if (typeof found !== 'object' || found === null) return undefined
    found = (found as Record<PropertyKey, unknown>)[key]
  }
  return found
}

/** Some libraries say what they received, and payloads must not reach logs and error columns. */
function withoutValues(message: string, value: unknown): string {
  // So long only with values in it; and to look for each of them would take long.
  if (message.length > LONGEST_MESSAGE) return '…'
  const was = message.endsWith(')') ? message.indexOf(' (was ') : -1
  let text = was < 0 ? message : message.slice(0, was)
  for (const leaf of leaves(value, [])) {
    const quoted = JSON.stringify(leaf)
    text = text.replaceAll(quoted, '…')
    const bare = String(leaf)
    if (bare.length > 2) text = text.replaceAll(bare, '…')
    else text = text.replace(new RegExp(`(?<![\\w.-])${bare.replace(/\W/g, '\\$&')}(?![\\w.-])`, 'g'), '…')
  }
  return text
}

function leaves(value: unknown, found: (string | number)[], depth = 0): (string | number)[] {
  if (found.length >= 200 || depth > 20) return found
  if ((typeof value === 'string' && value !== '') || typeof value === 'number') found.push(value)
  else if (typeof value === 'object' && value !== null) {
    for (const inner of Object.values(value)) leaves(inner, found, depth + 1)
  }
  return found
}
