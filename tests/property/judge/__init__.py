"""A provider that counts its own output, and the stories whose limits it judges.

``truth`` counts a body as a real provider does, ``provider`` generates and counts replies,
``bodies`` draws requests, ``stories`` draws and plays the events of the runs of one tenant, and
``oracle`` compares the provider's counts with the limits and with the charges. Nothing in here
reads the service's own estimates.
"""
