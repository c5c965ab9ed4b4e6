/** What must hold of brokers, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const rabbit = by('brokers/rabbitmq/consumer')
const rabbitFaults = by('brokers/rabbitmq/faults')
const rabbitInput = by('brokers/rabbitmq/bad-input')
const rabbitOutage = by('brokers/rabbitmq/outage')
const suite = (broker: string) => by(`brokers/${broker}/conformance`)('')
const nats = by('brokers/nats/publisher')
const natsFaults = by('brokers/nats/faults')
const natsLetters = by('brokers/nats/dead-letters')
const kafka = by('brokers/kafka/faults')
const kafkaInput = by('brokers/kafka/bad-input')
const kafkaRestart = by('brokers/kafka/restart')
const sender = by('brokers/http/sender')
const receiver = by('brokers/http/receiver')
const httpFaults = by('brokers/http/faults')
const routing = by('outbox/routing-relay')
const lifecycle = by('flow/run')
const adapter = by('testing/write-an-adapter')

export const consumerLines: Chapter = {
  title: 'Acceptance of consumers of a message queue',
  lines: [
    {
      id: 'B-1',
      text: 'Prefetch bounds what is unacked, several workers handle it, and nothing is acked before it is handled',
      tests: [
        rabbit('the topology is declared: quorum queue, dead-letter exchange, delivery limit, at-least-once'),
        rabbit('prefetch: the server gives 20 unacked messages at most, or as many as are asked for'),
        rabbit('five workers handle messages at once unless more or fewer are asked for'),
        rabbitFaults('a consumer is killed with unacked messages, and another gets them'),
      ],
    },
    {
      id: 'B-2',
      text: 'The trace context comes along in headers',
      tests: [
        rabbit('the trace context travels in headers, ours and those of others'),
        by('observability/tracing')('request, message and what follows from it are one trace'),
      ],
    },
    {
      id: 'B-3',
      text: 'The version is a header, 1 when absent, a whole number of any width',
      tests: [
        rabbit('a consumer that knows nothing of CloudEvents finds version, id and type where it looks for them'),
        rabbit('event_version is 1 when absent, and any whole number or its digits otherwise'),
        rabbit('a number that is no version is a permanent failure of that message alone'),
      ],
    },
    {
      id: 'B-4',
      text: 'After so many deliveries a message goes to the dead letters',
      tests: [
        rabbit('five deliveries, and then the dead letters; our own header decides'),
        rabbit('by default the tries of a message outlast a deploy: the last comes ten minutes after the first'),
        rabbitFaults('a message that kills its consumers ends in the dead letters by the limit of the server'),
      ],
    },
    {
      id: 'B-5',
      text: 'A message may take 30 s; then it is told to give up',
      tests: [rabbit('a message may take 30 s; then its signal aborts and it is tried again')],
    },
    { id: 'B-6.1', text: 'Success: acked', tests: [rabbit('success: acked, and gone')] },
    {
      id: 'B-6.2',
      text: 'Transient error: tried again, after a delay',
      tests: [
        rabbit('transient error: tried again after a delay, the attempt counted by us'),
        rabbit('RetryLater: as late as the handler says, beyond the longest queue too'),
      ],
    },
    {
      id: 'B-6.3',
      text: 'Permanent error: to the dead letters, and not again',
      tests: [rabbit('permanent error: to the dead letters at once')],
    },
    {
      id: 'B-6.4',
      text: 'Tried too often: to the dead letters, with reason, attempts and headers, and from there back',
      tests: [
        rabbit('five deliveries, and then the dead letters'),
        rabbit('poison: dead with reason, attempts and the original headers, and sent back with all its attempts'),
      ],
    },
    {
      id: 'B-6.5',
      text: 'Shutdown: requeued for another, without penalty',
      tests: [rabbit('shutdown: what is unsettled is requeued without penalty, however often')],
    },
    {
      id: 'B-7',
      text: 'Transient is told from permanent: connections, time limits and whatever is unknown may succeed later',
      tests: [by('core/errors')('an error is classified')],
    },
    {
      id: 'B-8',
      text: 'Each version has its handler; an unknown newer one is tried with the newest, an unknown type acked, with a warning',
      tests: [
        rabbit('each version goes to its handler; an unknown newer one is warned about and tried with the newest'),
        rabbit('an unknown type is acked with a warning: the producer may be ahead'),
      ],
    },
    {
      id: 'B-9',
      text: 'A consumer that stops takes nothing more, lets what is in flight finish, and gives the rest back',
      tests: [
        rabbit('shutdown: what is in flight may finish, and is acked'),
        rabbit('shutdown: what is unsettled is requeued without penalty'),
      ],
    },
    {
      id: 'B-10',
      text: 'A process stops in order: requests, consumers, relays, connections, stores',
      tests: [
        rabbit('shutdown of the whole process: consumers first, then connections, one call'),
        lifecycle('stops in order: requests, consumers, relays, connections, stores'),
        lifecycle('SIGTERM ends a process in order, after what is in flight has finished'),
      ],
    },
    {
      id: 'B-11',
      text: 'A lost connection is made again after 1 s, doubling to 30 s; a first one that can never succeed is an error',
      tests: [
        rabbitFaults('reconnects after 1 s doubling to 30 s, with jitter, and everybody shares the pause'),
        by('brokers/rabbitmq/connection')('is an error of start(), for every consumer'),
        by('brokers/rabbitmq/connection')('a server that is only away is waited for, visibly'),
        rabbitInput('a clear error at start, without the password'),
        by('brokers/away')('is an error of start(), of a relay and of a consumer'),
        by('brokers/away')('it starts, says so, pauses, and publishes when the server comes'),
      ],
    },
    {
      id: 'B-12',
      text: 'Channels, consumers and topology are made again after it',
      tests: [
        rabbitOutage('stopped and started under load: nothing lost, everything settled, all by itself'),
        rabbitFaults('a wrong ack closes the channel: the session is lost, a new one gets everything'),
        rabbitFaults('the queue is deleted while it is consumed: told, made again, and the flow goes on'),
        rabbit('an ack never goes to a channel it did not come from'),
      ],
    },
  ],
}

export const brokerRows: Chapter = {
  title: 'Brokers, row by row',
  lines: [
    {
      id: 'MQ-1',
      text: 'RabbitMQ consumer: see the lines above; topology verified, retries wait for real, dead letters at least once',
      tests: [
        rabbit('the topology is declared: quorum queue, dead-letter exchange, delivery limit, at-least-once'),
        rabbitInput('what is not there is an error that names it, unless it is declared'),
        rabbitInput('a queue or an exchange that exists with other settings is an error that says which'),
        rabbit('RetryLater: as late as the handler says, beyond the longest queue too'),
        rabbit('what cannot be decoded is dead alone, with the reason, and told'),
        rabbitFaults('a crash between the copy and the ack leaves two, never none'),
        rabbitFaults('a message that kills its consumers ends in the dead letters by the limit of the server'),
      ],
    },
    {
      id: 'MQ-2',
      text: 'RabbitMQ publisher: confirms, unroutable messages are told, batches, a blocked server is respected',
      tests: [
        rabbitFaults('the connection is cut mid-confirm: down, published again, duplicates only'),
        rabbitFaults('unroutable: matched to its message, down or rejected or fine as asked'),
        rabbitFaults('a full queue refuses: down, and a relay waits until there is room, without a charge'),
        rabbitOutage('publishing is down and says why, acks go on, and it resumes by itself'),
        rabbitOutage('larger than the server takes: that message is rejected, the others arrive, and it is remembered'),
      ],
    },
    {
      id: 'MQ-3',
      text: 'Reconnects with backoff, everything rebuilt, a first connection that can never succeed is an error; nothing is acked on a channel it did not come from',
      tests: [
        rabbitFaults('reconnects after 1 s doubling to 30 s, with jitter, and everybody shares the pause'),
        rabbitFaults('a wrong ack closes the channel: the session is lost, a new one gets everything'),
        rabbitFaults('a server that accepts and says nothing is given up, for publishers and consumers'),
        by('brokers/rabbitmq/connection')('is an error of start(), for every consumer'),
        by('brokers/rabbitmq/connection')('a server that is only away is waited for, visibly'),
        rabbit('an ack never goes to a channel it did not come from'),
      ],
    },
    {
      id: 'MQ-4.1',
      text: 'Kafka: idempotent, a key has its partition; committed after handling, order per key, rebalances without loss',
      tests: [
        kafkaInput('a key has the partition that Java and kafkajs give it'),
        kafkaRestart('the same request is repeated, and the server has it once'),
        kafkaRestart('killed and started again under load: nothing acknowledged is lost'),
        kafka('only what is done without a gap is committed, and reading does not run away from a gap'),
        kafka('consumers come and go under load: nothing is lost, first deliveries keep the order of their key'),
        kafka('a process that slept past its session settles nothing'),
        kafka('a poison message becomes a dead letter with its story and headers'),
        by('brokers/kafka/partitions')('reading pauses behind a record that is not done, and goes on when it is'),
      ],
    },
    {
      id: 'MQ-4.2',
      text: 'NATS JetStream: a repeat is stored once within the window; nak with delay, in-progress, our own count and dead letters',
      tests: [
        nats('the same event again is stored once, to another subject it is another, and after the window too'),
        natsFaults('what is released costs no attempt, in whichever process, and a charged retry does'),
        natsFaults('a handler that takes longer than the consumer waits is not run twice'),
        natsLetters('poison goes to the dead letters with reason, attempts and its headers, and can be sent back'),
        natsLetters('a message whose consumers die again and again is given up'),
        natsFaults('a cut connection that comes back loses nothing unsettled, and charges nobody'),
        natsFaults('stopped and started under load: nothing acknowledged is lost'),
      ],
    },
    {
      id: 'MQ-4.3',
      text: 'HTTP: signed webhooks, what an answer means, private networks kept out; the receiver verifies, and answers after the commit',
      tests: [
        by('brokers/http/signature')('are those of its test vector'),
        sender('a failed message comes again when the answer says'),
        sender('a redirect is not followed; the address is wrong, not the message'),
        sender('a pause that 503 asks for is kept: nothing is sent before its end, and nobody is charged'),
        by('brokers/http/addresses')('the guard of private networks'),
        receiver('the answer waits for the handler'),
        receiver('refused, and nobody hears of it'),
        receiver('a body that is too large is answered 413 while it is still being sent'),
        httpFaults('the connection is cut before the answer: sent again, and the inbox lets it happen once'),
        httpFaults('the receiver is killed while it handles: nothing is lost, and effects happen once'),
      ],
    },
    {
      id: 'MQ-4.4',
      text: 'A publisher may be a plain async function',
      tests: [
        by('outbox/relay-to-function')(
          'a plain async function publishes: what it throws is the outcome of that message alone',
        ),
        by('outbox/relay-to-function')('a function that returns no promise publishes too'),
        by('redis/service')('what forwards is confirmed by the destination only'),
      ],
    },
    {
      id: 'MQ-5',
      text: 'Every publisher and source passes one suite on its real server; the guide is enough to write another',
      tests: [
        ...['in-process', 'redis-streams', 'rabbitmq', 'nats', 'kafka', 'http'].map(suite),
        adapter('an adapter made of a directory'),
        adapter('the guide shows this very code'),
      ],
    },
    {
      id: 'MQ-routing',
      text: 'One relay, many destinations by topic; each with its own outcome, retries and dead events',
      tests: [
        routing('each event goes to the destinations of its topic, and the outbox is empty'),
        routing('a destination that is down for long pauses no other, and spends no attempt'),
        routing('dead at one destination is dead there only, and re-arming sends it there only'),
        routing('order per key holds at each destination'),
        by('outbox/routing-relay-crash')(
          'again and again while events flow: each destination has all of them, in order per key',
        ),
      ],
    },
  ],
}
