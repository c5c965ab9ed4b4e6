/** Flows without a broker: from a function or an iterable, through steps, into a sink. */
export {
  type FinitePipe,
  fromIterable,
  type Generate,
  type GivenUp,
  generate,
  type Pipe,
  type Sink,
  sink,
} from './flow/pipes.ts'
