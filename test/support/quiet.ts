import { loggedElsewhere } from '../../src/core/stderr.ts'

/** Faults are what tests make: nobody wants to read of each on stderr. */
loggedElsewhere()
