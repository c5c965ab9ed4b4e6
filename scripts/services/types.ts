/**
 * The words of the provisioning code. Everything that describes a running server is plain data, so that the runner,
 * the test processes, the watchdog and the command line can hand it to each other as JSON.
 */

/** fast: finish cleanly; immediate: drop everything at once, recover at the next start; kill: SIGKILL, no goodbye. */
export type StopMode = 'fast' | 'immediate' | 'kill'

/** The unprivileged user a server runs as when we are root. */
export interface Account {
  name: string
  uid: number
  gid: number
}

/** One operating system process: all that is needed to start it, and to start it again after a crash. */
export interface Launch {
  role: string
  command: string
  args: string[]
  env: Record<string, string>
  cwd: string
  account: Account | null
  log: string
  pidFile: string
  signals: Record<'fast' | 'immediate', NodeJS.Signals>
}

export type Protocol = 'postgres' | 'redis' | 'amqp' | 'nats' | 'kafka' | 'tcp'

export interface Address {
  host: string
  port: number
}

/** Who decides whether the server lives: nobody here (found), our processes, or a container. */
export type Control =
  | { kind: 'found' }
  | { kind: 'process'; launches: Launch[]; dataDir: string }
  | { kind: 'docker'; project: string; service: string; port: number; record: string }

export interface Server {
  name: string
  url: string
  /** Where it came from, for people: 'environment', 'already running', 'docker', 'npm', 'debian', … */
  origin: string
  version: string
  protocol: Protocol
  control: Control
}

/** What a test process is told through WAYBILL_SERVICES. */
export interface Handover {
  run: string
  servers: Server[]
  without: string[]
}

export interface Binaries {
  origin: string
  version: string
  /** Folder that holds the executables. */
  bin: string
  /** For binaries outside the system's own library path. */
  env?: Record<string, string>
}

/** What a catalog entry gets to build its launches from. */
export interface Site {
  /** Private directory of this server, owned by the account it runs as. */
  dir: string
  account: Account | null
  binaries: Binaries
  /** Server settings a test asks for on top of the usual ones. */
  settings: Record<string, string>
  port(): Promise<number>
  /** A server that `after` names. */
  other(name: string): Server
  launch(role: string, parts: Pick<Launch, 'command' | 'args'> & Partial<Launch>): Launch
}

export interface Entry {
  name: string
  /** Environment variable with the URL of a server to use instead of a private one. */
  variable: string
  /** Where a server that people run for themselves would listen. */
  defaultUrl: string
  protocol: Protocol
  /** The way to get it, for the message when nothing worked. */
  install: string
  /** Users to run as when we are root, first that exists. */
  accounts: string[]
  /** Servers this one stands in front of. */
  after?: string[]
  /** Has a container of the same name in compose.yml. */
  container?: boolean
  /** Settings of the server that all tests share, and that none of them stops. */
  shared?: Record<string, string>
  url(port: number): string
  /** Finds or downloads the executables; cached, so the second call is quick. */
  binaries(say: (text: string) => void): Promise<Binaries>
  /** Prepares the private directory and says which processes to start, in order. The last one is the server. */
  prepare(site: Site): Promise<{ port: number; launches: Launch[]; dataDir: string }>
}
