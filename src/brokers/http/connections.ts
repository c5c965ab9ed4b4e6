import { type ClientRequest, Agent as PlainAgent } from 'node:http'
import { Agent as SecureAgent } from 'node:https'
import type { Duplex } from 'node:stream'
import type { HttpSenderSettings } from './sender-options.ts'

/** What makes connections, and keeps them for the next request. */
export interface Agents {
  readonly 'http:': PlainAgent
  readonly 'https:': SecureAgent
}

export function agentsOf({ concurrency, guard, tls, fixed }: HttpSenderSettings): Agents {
  const options = { keepAlive: true, maxSockets: concurrency, maxFreeSockets: concurrency, lookup: guard.lookup }
  const agents = { 'http:': new PlainAgent(options), 'https:': new SecureAgent({ ...tls, ...options }) }
  if (fixed === undefined) keepAtMost(concurrency, Object.values(agents))
  return agents
}

/** What is declared to return nothing: `false` closes the connection. */
type Keep = (socket: Duplex) => boolean

/**
 * Of all hosts together: over that, the connection that has waited longest is closed. `node:http` counts for each host, and
 * there may be thousands, of which some never close what they do not use.
 */
function keepAtMost(most: number, agents: readonly PlainAgent[]): void {
  const idle = new Set<Duplex>()
  for (const agent of agents) {
    const keep = agent.keepSocketAlive.bind(agent) as unknown as Keep
    const reuse = agent.reuseSocket.bind(agent)
    const keepFew: Keep = (socket) => {
      if (!keep(socket)) return false
      for (const oldest of idle) {
        if (idle.size < most) break
        idle.delete(oldest)
        oldest.destroy()
      }
      idle.add(socket)
      return true
    }
    agent.keepSocketAlive = keepFew
    agent.reuseSocket = (socket: Duplex, request: ClientRequest) => {
      idle.delete(socket)
      reuse(socket, request)
    }
  }
}
