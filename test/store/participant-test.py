"""Runs examples/participant.py with psql in the place of a driver: each line of stdin is an event."""

import importlib.util
import json
import subprocess
import sys

END = "-- end of answer --"


class Psql:
    """As much of the DB-API as the example uses."""

    def __init__(self, url):
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-F", "\x1f", "-P", "null=\x1e"]
        self.process = subprocess.Popen(["psql", url, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.open = False

    def cursor(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def execute(self, sql, values=()):
        if not self.open:
            self.open = True
            self._run("BEGIN;")
        quoted = tuple("'" + str(value).replace("'", "''") + "'" for value in values)
        self.rows = self._run(sql % quoted + ";")

    def fetchone(self):
        kinds = {"t": True, "f": False, "\x1e": None}
        return [kinds.get(cell, cell) for cell in self.rows[0].split("\x1f")]

    def commit(self):
        self._run("COMMIT;")
        self.open = False

    def _run(self, sql):
        self.process.stdin.write(sql + "\n\\echo " + END + "\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.rstrip("\n") == END:
                return lines
            lines.append(line.rstrip("\n"))
        raise RuntimeError("psql has stopped")


spec = importlib.util.spec_from_file_location("participant", sys.argv[1])
participant = importlib.util.module_from_spec(spec)
spec.loader.exec_module(participant)
connection = Psql(sys.argv[2])
for line in sys.stdin:
    participant.handle(connection, json.loads(line))
    print("handled", flush=True)
