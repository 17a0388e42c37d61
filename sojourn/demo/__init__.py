"""`sojourn demo`: 200 onboardings on three nodes, one killed, one drained, judged by a journal that Sojourn
does not write.
"""
