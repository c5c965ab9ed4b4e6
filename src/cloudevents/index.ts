export { decodeData, encodeData, isJsonType } from '../core/data.ts'
export { type BinaryMessage, fromBinary, toBinary } from './binary.ts'
export {
  BATCH_TYPE,
  contentMode,
  fromBatch,
  fromStructured,
  STRUCTURED_TYPE,
  toBatch,
  toStructured,
} from './structured.ts'
