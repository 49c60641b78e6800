"""The connector SPI: what a source and a sink must offer; connectors see nothing else of penstock."""
