"""Did a model learn secrets? Each is compared with others of its form that could have been it.

`controls` has the forms and draws, `questions` what a model is asked, `asking` how,
`results` what a table and sentences say, `command` the command ``mia-batch secrets``,
`canaries` secrets that a training learns so that it can be tested.
"""
