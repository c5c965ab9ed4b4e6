/** `npm run services -- up|down|status [names…] [--json]`: servers for people, kept until `down`. */

import { locked } from './cache.ts'
import { catalog, known } from './catalog.ts'
import { needed } from './needed.ts'
import { ProvisionError, provision } from './provision.ts'
import { isReady } from './ready.ts'
import { newRunDir, sweep } from './run.ts'
import { stopAll } from './server.ts'
import { clearState, readState, writeState } from './state.ts'
import type { Handover, Server } from './types.ts'

const usage = `npm run services -- up|down|status [names…] [--json]\nknown: ${Object.keys(catalog).join(', ')}`

async function up(names: string[], json: boolean): Promise<void> {
  const state: Handover = (await readState()) ?? { run: await newRunDir(), servers: [], without: [] }
  const alive: Server[] = []
  for (const server of state.servers) if (await isReady(server.url, server.protocol)) alive.push(server)
  const missing = names.filter((name) => !alive.some((server) => server.name === name))
  // Progress goes to stderr: stdout is for `eval` or a JSON parser.
  const say = (text: string) => console.error(`· ${text}`)
  const keep = async (servers: Server[]) => {
    const all = new Map([...alive, ...servers].map((server) => [server.name, server]))
    await writeState({ ...state, servers: [...all.values()] })
    return [...all.values()]
  }
  const started = await provision(missing, { run: state.run, say, running: alive }).catch(async (error) => {
    // Those that did start must not be forgotten, or nothing could end them.
    if (error instanceof ProvisionError) await keep(error.started)
    throw error
  })
  const all = await keep(started)
  print(
    all.filter((server) => names.includes(server.name)),
    json,
  )
}

async function down(names: string[]): Promise<void> {
  const state = await readState()
  if (!state) return console.error('nothing is running')
  const chosen = names.length ? state.servers.filter((server) => names.includes(server.name)) : state.servers
  await Promise.all(chosen.map(stopAll))
  for (const server of chosen) console.error(`· ${server.name}: ended`)
  const rest = state.servers.filter((server) => !chosen.includes(server))
  if (rest.length) return await writeState({ ...state, servers: rest })
  await sweep(state.run)
  await clearState(state)
}

async function status(names: string[], json: boolean): Promise<void> {
  const servers = (await readState())?.servers ?? []
  const shown = names.length ? servers.filter((server) => names.includes(server.name)) : servers
  const states = await Promise.all(shown.map((server) => isReady(server.url, server.protocol)))
  if (json)
    return console.log(JSON.stringify(shown.map((server, index) => ({ ...brief(server), ready: states[index] }))))
  if (!shown.length) console.log('nothing is running')
  for (const [index, { name, version, url }] of shown.entries()) {
    console.log(`${name.padEnd(12)} ${version.padEnd(9)} ${states[index] ? 'ready' : 'down '} ${url}`)
  }
}

function brief({ name, version, url, origin }: Server) {
  return { name, version, url, origin, variable: catalog[name]!.variable }
}

function print(servers: Server[], json: boolean): void {
  if (json) console.log(JSON.stringify(servers.map(brief)))
  else for (const { name, url } of servers) console.log(`export ${catalog[name]!.variable}='${url}'`)
}

async function main(): Promise<void> {
  const words = process.argv.slice(2)
  const json = words.includes('--json')
  const [verb, ...names] = words.filter((word) => word !== '--json')
  const unknown = names.find((name) => name.startsWith('-'))
  if (unknown) throw new Error(`unknown option '${unknown}'\n${usage}`)
  known(names)
  // One at a time: two of them would each start what the other is starting, and one would forget the other's.
  if (verb === 'up') return await locked('services', () => up(names.length ? names : needed, json))
  if (verb === 'down') return await locked('services', () => down(names))
  if (verb === 'status') return await status(names, json)
  throw new Error(usage)
}

main().then(
  // Servers are detached, but the pipes of this process to their start are not always: do not wait for those.
  () => process.exit(0),
  (error) => {
    console.error(error.message)
    process.exit(1)
  },
)
