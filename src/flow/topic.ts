import { type Local, local, type Message } from '../core/index.ts'

const TOPIC: Local<string> = local('topic')

/** Where a message is to go, as whoever sent it said. It travels beside the message, never within it. */
export function topicOf(message: Message): string {
  return message.local(TOPIC) ?? message.type
}

/** The topic, routing key or subject of a delivery, for logs and traces. */
export function topicOfDelivery({ topic, message }: { topic?: string; message: Message }): string {
  return topic ?? topicOf(message)
}

export function setTopic(message: Message, topic: string): void {
  if (topic !== message.type) message.setLocal(TOPIC, topic)
}
