"""Commands that read, over a topic of a real broker."""

from confluent_kafka import Producer
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import HeadraceError


def write(bootstrap, topic, messages, **settings):
    """Write (partition, key, value, timestamp in ms) and wait until they are there."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(10)
        producer.begin_transaction()
    for partition, key, value, time_ms in messages:
        producer.produce(topic, value, key, partition, timestamp=time_ms)
    assert producer.flush(10) == 0
    return producer


def headrace(*arguments, code=0):
    """Run the command in this process, as into a pipe of 100 columns. Returns what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in arguments], env={"COLUMNS": "100"})
    error = result.exception
    assert (error.exit_code if isinstance(error, HeadraceError) else result.exit_code) == code, (result.output, error)
    return result.stdout
