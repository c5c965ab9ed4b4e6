import { onServer } from './conformance-suites.ts'

onServer('postgres15')
