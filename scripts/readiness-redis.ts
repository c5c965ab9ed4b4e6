/** What must hold on Redis, and the tests that show it; see readiness-map.ts. */
import type { Chapter } from './readiness-map.ts'

const by = (file: string) => (name: string) => ({ file: `test/${file}.test.ts`, name })
const streams = (file: string) => by(`brokers/redis-streams/${file}`)
const badInput = streams('bad-input')
const groups = streams('groups')
const broker = streams('conformance')
const cluster = streams('cluster')
const clusterFailover = streams('cluster-failover')
const commands = streams('commands')
const durability = streams('durability')
const faults = streams('faults')
const foreign = streams('foreign')
const longRun = streams('long-run')
const sentinel = streams('sentinel')
const clients = by('drivers/redis/slot')
const conformance = by('redis/conformance')
const inbox = by('redis/inbox')
const many = by('redis/faults/many')
const service = by('redis/service')
const together = by('redis/cluster')
const unit = by('redis/unit')

export const redisLines: Chapter = {
  title: 'Acceptance of the integration of Redis',
  lines: [
    {
      id: 'A-1',
      text: 'Adapters get the commands of the unit of work where there is one, and a client otherwise, by one interface',
      tests: [
        unit('queue within a unit of work, and write at once outside of one'),
        unit('what outlives its unit writes at once, not into a unit that is over'),
        conformance('the transaction is current inside, however deep, and nowhere else'),
      ],
    },
    {
      id: 'A-2',
      text: 'What was queued is written in one step when the handler has succeeded, and discarded when it throws',
      tests: [
        unit('everything queued is written in one step, in its order, whatever the type of key'),
        unit('all of it is one command to the server, when the function has returned; nothing when it throws'),
        conformance('what throws is rolled back, and throws just that'),
        service('a handler that throws has written nothing, and succeeds later'),
      ],
    },
    {
      id: 'A-3',
      text: 'Handlers import no driver',
      tests: [
        service('a handler that imports no driver: written in its unit of work on Redis, and unchanged elsewhere'),
      ],
    },
    {
      id: 'A-4',
      text: 'Inbox: a new message is handled, a duplicate is acknowledged, a failed one is tried again, marks expire, keys are yours',
      tests: [
        service('business writes, the done mark and outputs are one step; duplicates are acked'),
        inbox('a handler that fails gives its mark up at once'),
        inbox('after the retention a message is new again'),
        inbox('the name of a mark can be chosen'),
        service('two subscribers of one stream do not suppress each other'),
      ],
    },
    {
      id: 'A-5',
      text: 'Outbox: outputs are written with the business commands, go nowhere else, need the transaction; stream and encoding are yours',
      tests: [
        service('business writes, the done mark and outputs are one step'),
        service('a handler that imports no driver: written in its unit of work on Redis, and unchanged elsewhere'),
        service('the three middlewares by themselves, in their order, or an error at start'),
        service('what is refused stays, and stream and codec are yours'),
      ],
    },
    {
      id: 'A-6',
      text: 'Subscriber: the group is made, acks are XACK, what is not acknowledged stays pending, idle entries are taken over',
      tests: [
        broker('what is done does not come again, to a new session neither'),
        broker('a charged retry comes again, and the attempt is counted'),
        badInput('is deleted while running: told, made again, and the flow goes on'),
        faults('a consumer is killed with entries pending, and another gets them, charged'),
      ],
    },
    {
      id: 'A-7',
      text: 'Publisher: XADD, a limit of length if wanted, an outcome for each message, own encoding',
      tests: [
        broker('a refused message is distinguished from those that arrived, by its place'),
        groups('maxLen trims to about so many, or exactly where asked'),
        groups('the version of an event arrives'),
        groups('an encoder that gives more fields than can be appended costs nobody but its message'),
        badInput('settings that lose messages are told, or refused where durability is required'),
        badInput('own encoders and decoders, and a client with a key prefix'),
      ],
    },
    {
      id: 'A-8',
      text: 'Forwarding: the outbox stream goes to any publisher, and is acknowledged when that has confirmed',
      tests: [
        service('what forwards is confirmed by the destination only'),
        service('one outbox stream serves many destinations: other streams, by topic'),
      ],
    },
    {
      id: 'A-9',
      text: 'Redis 6.0 is enough',
      tests: [
        commands('no command, subcommand or argument that came after 6.0 is sent'),
        commands('the scripts call nothing that came after 6.0'),
        broker('ioredis on redis6 > every attribute and extension arrives'),
      ],
    },
    {
      id: 'A-10',
      text: 'Commit before ack, through kills of every process',
      tests: [many('through subscriber, inbox, unit of work, outbox and forwarder: nothing lost, nothing twice')],
    },
  ],
}

export const redisRows: Chapter = {
  title: 'Redis Streams, row by row',
  lines: [
    {
      id: 'RD-1',
      text: 'Subscriber: groups, names of their own, what was left is found again, delays, limits, undecodable entries alone',
      tests: [
        groups('by default: 10 entries a read, which waits 1 s; every 30 s what was let lie for 60 s'),
        groups('a group begins with all there is, with what comes, or behind an id'),
        groups('a group that begins with what comes, and is destroyed: nothing is missed'),
        faults('two subscribers with equal configuration share no consumer name'),
        faults('a process with a stable name finds what it left when it was killed'),
        faults('the delay of a retry outlives its session, and so does what it cost'),
        badInput('an entry whose consumers die again and again is given up'),
        badInput('undecodable entries go to the dead letters alone'),
      ],
    },
    {
      id: 'RD-2',
      text: 'Reclaiming: from idle owners, never from work that goes on, fenced; trimmed entries are told as lost',
      tests: [
        faults('a handler that takes longer than the idle threshold is not run twice'),
        faults('a consumer that is suspended past the idle threshold'),
        faults('a zombie settles nothing that others took over'),
        foreign('what they claim from us we neither keep alive nor give back'),
        foreign('what one of them read and never acknowledged is taken over'),
        badInput('entries trimmed before they were handled are acknowledged away and told as lost'),
      ],
    },
    {
      id: 'RD-3',
      text: 'Publisher: ok when Redis has it; trimming loses nothing that a group still needs; memory stays bounded',
      tests: [
        faults('the connection is cut between command and reply: down, published again, duplicates only'),
        clients('nothing is sent again behind our back'),
        badInput('the trimmer deletes what every group has handled and nothing else'),
        longRun('memory stays bounded with remove, also when sessions come and go'),
        longRun('memory stays bounded with trimmer, also when sessions come and go'),
      ],
    },
    {
      id: 'RD-11',
      text: 'Standalone, Sentinel and Cluster, through failovers; settings that lose messages are told, and waiting for replicas',
      tests: [
        sentinel('the master is killed while messages flow: what it and a replica had is not lost'),
        sentinel('scripts are forgotten while messages flow, and are sent again'),
        clusterFailover('a master is killed while messages flow: what it and its replicas had is not lost'),
        cluster('a slot moves to another node while messages flow: nothing is lost'),
        cluster('streams of different slots are refused before anything is sent'),
        together('a failover in the middle of a unit'),
        durability('a warning that names what is lost'),
        durability('no AOF: a warning that names what is lost, and with durability required a refusal'),
        durability('replicas that nobody waits for: a warning'),
        durability('with a replica it is ok when the replica has it, and down while the replica hangs'),
        durability('a master that becomes a replica: down, the session is lost'),
        faults('killed and started again with AOF under load: nothing acknowledged is lost'),
        foreign('one clear error, for source and publisher'),
        longRun('the lag is exact up to a limit where the server does not know it'),
      ],
    },
  ],
}
