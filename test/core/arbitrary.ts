import fc from 'fast-check'
import { type Attributes, Message } from '../../src/core/index.ts'

/** Names the standard or the official SDK keeps for itself. */
const TAKEN = new Set([
  ...['id', 'source', 'type', 'specversion', 'subject', 'time', 'datacontenttype', 'dataschema', 'data'],
  ...['datacontentencoding', 'schemaurl', 'constructor', 'validate', 'emit'],
])

/** Any text that is valid Unicode. */
export const text = fc.string({ unit: 'binary', minLength: 1, maxLength: 30 })

/** What every HTTP header can hold as it is. */
export const plain = fc.stringMatching(/^[!#$&-~]{1,30}$/)

export const time = fc
  .date({ min: new Date('1970-01-01T00:00:00Z'), max: new Date('2999-12-31T23:59:59Z'), noInvalidDate: true })
  .map((date) => date.toISOString())

const name = fc.stringMatching(/^[a-z0-9]{1,20}$/).filter((given) => !TAKEN.has(given))

export function attributes(string: fc.Arbitrary<string>): fc.Arbitrary<Attributes> {
  const value = fc.oneof(string, fc.integer(), fc.boolean())
  const optional = fc.record({ subject: string, time, dataschema: string }, { requiredKeys: [] })
  const extensions = fc.dictionary(name, value, { maxKeys: 5, noNullPrototype: true })
  return fc
    .record({ id: string, source: string, type: string, optional, extensions })
    .map(({ optional, ...rest }) => ({ ...rest, ...optional }))
}

/** What survives `JSON.parse(JSON.stringify(…))` as it is: no minus zero. */
export const json = fc.jsonValue().map((value) => JSON.parse(JSON.stringify(value)) as unknown)

export const bytes = fc.uint8Array({ maxLength: 50 })

/** Messages of every form and kind of data. */
export const message: fc.Arbitrary<Message> = attributes(text).chain((given) =>
  fc.oneof(
    fc
      .tuple(json, fc.constantFrom(undefined, 'application/json', 'text/json; charset=utf-8', 'application/vnd.x+json'))
      .chain(([data, datacontenttype]) =>
        fc.constantFrom(
          new Message({ ...given, datacontenttype }, data, 'value'),
          new Message({ ...given, datacontenttype }, JSON.stringify(data, undefined, 1)),
          new Message({ ...given, datacontenttype }, Buffer.from(JSON.stringify(data))),
        ),
      ),
    fc
      .tuple(fc.string({ unit: 'binary' }), fc.constantFrom('text/plain', 'application/xml'))
      .map(([data, datacontenttype]) => new Message({ ...given, datacontenttype }, data)),
    bytes.map((data) => new Message({ ...given, datacontenttype: 'application/octet-stream' }, data)),
    fc.constant(new Message(given, '')),
  ),
)
