import type { Mutation } from '../../scripts/mutations/mutation.ts'

const needs = ['nats']

/** Faults of the NATS broker and of its connection. */
export const mutations: Mutation[] = [
  {
    name: 'what is released on NATS is charged',
    file: 'src/brokers/nats/session.ts',
    find: "return settlement.kind === 'release' ||",
    replace: 'return',
    test: 'test/brokers/nats/faults.test.ts',
    expects: 'costs no attempt',
    needs,
  },
  {
    name: 'a session on NATS settles past its time',
    file: 'src/brokers/nats/session.ts',
    find: 'if (this.#over || !this.live()) return batch.length',
    replace: 'if (this.#closed) return batch.length',
    test: 'test/brokers/nats/faults.test.ts',
    expects: 'falls silent',
    needs,
  },
  {
    name: 'work in hand is not renewed on NATS',
    file: 'src/brokers/nats/session.ts',
    find: 'if (held.length > 0) await this.#guard(() => this.#member.extend(held))',
    replace: '',
    test: 'test/brokers/nats/faults.test.ts',
    expects: 'is not run twice',
    needs,
  },
  {
    name: 'a message on NATS is answered before its letter is written',
    file: 'src/brokers/nats/member.ts',
    find: '    await this.#write(questions)\n    return tooLarge',
    replace: '    return tooLarge',
    test: 'test/brokers/nats/dead-letters.test.ts',
    expects: 'poison goes to the dead letters',
    needs,
  },
  {
    name: 'a letter that is sent back to NATS keeps its message id, and the window swallows it',
    file: 'src/brokers/nats/dead-letters.ts',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    find: '`rearmed ${settings.dead} ${stored.seq} ${stored.time}`',
    replace: "headersOf(stored).find(([name]) => name === 'Waybill-Nats-Msg-Id')![1]",
    test: 'test/brokers/nats/dead-letters.test.ts',
    expects: 'can be sent back',
    needs,
  },
  {
    name: 'every publish to NATS has an id of its own, so repeats are stored',
    file: 'src/brokers/nats/publisher.ts',
    find: 'messageId(subject, message)',
    replace: 'messageId(subject, message) + Math.random()',
    test: 'test/brokers/nats/faults.test.ts',
    expects: 'in the stream once',
    needs,
  },
  {
    name: 'two subjects of one stream share message ids',
    file: 'src/brokers/nats/encoding.ts',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    find: '${unspaced(id)} ${subject}`',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    replace: '${unspaced(id)}${subject.slice(0, 0)}`',
    test: 'test/brokers/nats/publisher.test.ts',
    expects: 'to another subject it is another',
    needs,
  },
  {
    name: 'what was unanswered when the connection to NATS broke waits for its time',
    file: 'src/drivers/nats/link.ts',
    find: '    for (const batch of [...this.#waiting.values()]) answerRest(batch, () => reason)\n',
    replace: '',
    test: 'test/brokers/nats/faults.test.ts',
    expects: 'in the stream once',
    needs,
  },
  {
    name: 'a full stream is the message’s fault',
    file: 'src/brokers/nats/publisher.ts',
    find: "return { kind: 'down', error: new Unavailable(text, { cause: error }) }",
    replace: "return { kind: 'failed', error }",
    test: 'test/brokers/nats/publisher.test.ts',
    expects: 'a stream that is full is down',
    needs,
  },
  {
    name: 'what is for another group is handled by all',
    file: 'src/brokers/nats/intake.ts',
    find: 'if (headers[ONLY] !== undefined && headers[ONLY] !== this.#settings.group) this.#others.push(delivery)\n    else ',
    replace: '',
    test: 'test/brokers/nats/dead-letters.test.ts',
    expects: 'poison goes to the dead letters',
    needs,
  },
  {
    name: 'a consumer with max_deliver is taken as it is',
    file: 'src/brokers/nats/setup.ts',
    find: 'if (max_deliver !== -1) {',
    replace: 'if (max_deliver === 0) {',
    test: 'test/brokers/nats/bad-input.test.ts',
    expects: 'cannot be used is refused',
    needs,
  },
]
