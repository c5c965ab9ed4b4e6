"""A participant in a saga, in Python. `connection` is of any DB-API driver, such as psycopg.connect(...)."""

import json
import uuid


def handle(connection, event):
    """`event` is a CloudEvent as JSON: ship.wanted, or ship.cancel, which undoes it."""
    operation = "undo" if "sagaundo" in event else "run"
    with connection.cursor() as cursor:
        # Before the work. Two transactions at the same key wait for each other here.
        cursor.execute("SELECT go, ran, output::text FROM waybill_barrier(%s, %s)", (event["sagakey"], operation))
        go, ran, output = cursor.fetchone()
        if go:
            if operation == "run":
                cursor.execute("INSERT INTO parcels (id) VALUES (%s)", (event["sagakey"],))
                output = json.dumps({"type": "ship.done", "data": {"parcel": event["sagakey"]}})
            else:
                # Not ran: a run that was rolled back may have had effects outside. Look there too.
                cursor.execute("DELETE FROM parcels WHERE id = %s", (event["sagakey"],))
                output = json.dumps({"type": "ship.cancelled", "data": {"ran": ran}})
            # After the work: what a repeated request is answered with.
            cursor.execute("SELECT go FROM waybill_barrier(%s, %s, %s::text::jsonb)", (event["sagakey"], operation, output))
        # A run after its undo is refused: no go, and no output.
        if output is not None:
            answer(cursor, event, json.loads(output))
    connection.commit()


def answer(cursor, request, reply):
    """Into the outbox, with the commit. A reply that its saga expects says which saga that is; no other event does."""
    attributes = {}
    if reply["type"] in request.get("sagareplies", "").split():
        names = ("sagatype", "sagaid", "sagastep", "sagaundo")
        attributes["extensions"] = {name: request[name] for name in names if name in request}
    cursor.execute(
        "INSERT INTO outbox (event_id, topic, source, event_type, attributes, payload)"
        " VALUES (%s::text::uuid, %s, '/shipping', %s, %s::text::jsonb, %s::text::jsonb)",
        (str(uuid.uuid4()), reply["type"], reply["type"], json.dumps(attributes), json.dumps(reply["data"])),
    )
