"""Jobs as the dispatcher knows them: records, drivers, stores, requests; called by the dispatcher."""
