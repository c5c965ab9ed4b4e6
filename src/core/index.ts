export { type Attributes, checkAttributes, type Extensions, type ExtensionValue } from './attributes.ts'
export { type Backoff, type BackoffOptions, backoff } from './backoff.ts'
export { blameless, type Classify, classifier, classify, classifyPublish, type ErrorKind } from './classify.ts'
export { type Clock, systemClock } from './clock.ts'
export { decodeData, encodeData, isJsonType } from './data.ts'
export { type Duration, LONGEST_DELAY, milliseconds } from './duration.ts'
export { errorSummaries, errorSummary, MAX_ERROR_LENGTH } from './error-summary.ts'
export { checkAccess, Reject, RetryLater, startError, Unavailable, WaybillError, withoutCode } from './errors.ts'
export type { OnNewer } from './event.ts'
export {
  type EventData,
  type EventDefinition,
  type EventKey,
  type EventOptions,
  type EventVersion,
  event,
  type MessageOptions,
} from './event.ts'
export {
  GAUGES,
  type GaugeName,
  type GaugeSource,
  type GaugeSubject,
  type GaugeValue,
  type Observed,
  observe,
  observed,
} from './gauges.ts'
export { eventUuid, formatUuid, isUuid, nameUuid, uuidv7 } from './id.ts'
export { fieldsOf, type LogFields, lineOf, plainText, stackOf } from './log-line.ts'
export { type Form, isRaw, type Local, local, Message, type RawMessage } from './message.ts'
export { checkOptions, describe, nearest, type OptionNames, oneOf, wholeNumber } from './options.ts'
export { patternOf } from './pattern.ts'
export { type Random, systemRandom } from './random.ts'
export type { SchemaInput, SchemaIssue, SchemaOutput, SchemaResult, StandardSchema } from './schema.ts'
export { loggedElsewhere, reportOnStderr } from './stderr.ts'
export {
  TELEMETRY_NAMES,
  TELEMETRY_PREFIX,
  type TelemetryChannel,
  type TelemetryEvents,
  type TelemetryName,
  telemetry,
  warnOnce,
} from './telemetry.ts'
export { asError, causesOf, pauseAfter } from './thrown.ts'
export {
  activeTraceparent,
  type HandledBy,
  inSpan,
  type SpanAbout,
  type Traces,
  traceBy,
  traced,
  traces,
} from './trace.ts'
export { aborted, isThenable, Notifier, onAbort, promiseOf, untilAborted, Wakeup, withDeadline } from './waiting.ts'
export { withoutData, withoutText } from './without-data.ts'
