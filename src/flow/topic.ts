import { type Local, local, type Message } from '../core/index.ts'

const TOPIC: Local<string> = local('topic')

/** Where a message is to go, as whoever sent it said. It travels beside the message, never within it. */
export function topicOf(message: Message): string {
  return message.local(TOPIC) ?? message.type
}

export function setTopic(message: Message, topic: string): void {
  if (topic !== message.type) message.setLocal(TOPIC, topic)
}
