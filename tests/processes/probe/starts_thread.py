"""A user's module that cannot be forked safely."""

import threading
import time

threading.Thread(target=lambda: time.sleep(600), daemon=True, name="background").start()
