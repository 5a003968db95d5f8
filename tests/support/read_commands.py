"""Commands that read, over a topic of a real broker."""

from confluent_kafka import Producer
from typer.testing import CliRunner

from writer.cli.main import app
from writer.core.errors import HeadraceError


def write(bootstrap, topic, messages, **settings):
    """Write (partition, key, value, timestamp in ms) and wait until they are there."""
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(10)
        producer.begin_transaction()
    for partition, key, value, at in messages:
        producer.produce(topic, value, key, partition, timestamp=at)
    assert producer.flush(10) == 0
    return producer


def headrace(*words, code=0):
    """Run the command in this process, as into a pipe of 100 columns. Returns what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    error = result.exception
    assert (error.exit_code if isinstance(error, HeadraceError) else result.exit_code) == code, (result.output, error)
    return result.stdout
