"""The connector SPI: the interfaces of sources and sinks; connectors import no other package of penstock."""
